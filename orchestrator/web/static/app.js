// What pages gain with JavaScript: colours without a reload, copy buttons, a live log that neither doubles
// nor loses lines, times in the reader's zone. Every page works without this file.
"use strict";

const announce = (text) => { document.getElementById("announce").textContent = text; };

// Colours: the same cookie that the server reads, set here to save a reload.
document.addEventListener("submit", (event) => {
  const form = event.target.closest("form.theme");
  if (!form || !event.submitter) return;
  event.preventDefault();
  const theme = event.submitter.value;
  document.cookie = `lamplighter_theme=${theme}; path=/; max-age=31536000; samesite=lax`;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  for (const button of form.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.value === theme));
  }
});

// Copy: the button is hidden in the page, because without this the text is there to select.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
    announce("Copied to the clipboard");
  } catch {
    getSelection().selectAllChildren(source);
    button.textContent = "Selected";
    announce("The text is selected, copy it with the keyboard");
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});

// A fold that says where its content is gets it when it is first opened; the link in it stays when that fails.
document.addEventListener("toggle", async (event) => {
  const fold = event.target;
  if (!fold.open || !fold.dataset.fill) return;
  const address = fold.dataset.fill;
  delete fold.dataset.fill;
  try {
    const answer = await fetch(`${address}?bare=true`);
    if (!answer.ok) throw new Error(answer.status);
    const content = document.createElement("div");
    content.innerHTML = await answer.text();
    fold.querySelector(":scope > p").replaceWith(content);
  } catch {
    fold.dataset.fill = address;
    announce("That could not be loaded; the link leads to it");
  }
}, true);

// A link to a finding opens it.
const openTarget = () => {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") target.open = true;
};
addEventListener("hashchange", openTarget);

const improve = (root) => {
  for (const button of root.querySelectorAll("button[data-copy][hidden]")) button.hidden = false;
  for (const time of root.querySelectorAll("time[datetime]")) {
    const local = new Date(time.dateTime).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    time.title = `${local} on your clock`;
  }
};
improve(document);
openTarget();
document.addEventListener("htmx:load", (event) => improve(event.detail.elt.parentElement || document));

// Live log. The browser repeats Last-Event-ID when it reconnects by itself; when the extension has to make a
// new connection (after an error answer), the last id goes into the address instead.
if (window.htmx) {
  let lastId = "";
  htmx.createEventSource = (address) => {
    const url = new URL(address, location.href);
    if (lastId) url.searchParams.set("after", lastId);
    const source = new EventSource(url);
    for (const name of ["log", "round"]) {
      source.addEventListener(name, (event) => { if (event.lastEventId) lastId = event.lastEventId; });
    }
    return source;
  };
  const atEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < 60;
  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    const box = event.target.closest("pre.log");
    if (box) box.dataset.follow = String(atEnd(box));
  });
  document.addEventListener("htmx:sseMessage", (event) => {
    const box = event.target.closest("pre.log");
    if (!box) return;
    while (box.childNodes.length > 3000) box.firstChild.remove();
    if (box.dataset.follow === "true") box.scrollTop = box.scrollHeight;
  });
  const live = () => document.querySelector("[sse-connect]");
  document.addEventListener("htmx:sseError", () => live()?.classList.add("gone"));
  document.addEventListener("htmx:sseOpen", () => live()?.classList.remove("gone"));
}
for (const box of document.querySelectorAll("pre.log.follow")) box.scrollTop = box.scrollHeight;
