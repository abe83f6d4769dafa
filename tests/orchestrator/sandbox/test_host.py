"""What this machine is, from recorded kernel files."""

from orchestrator.sandbox import host

X86 = "processor\t: 0\nmodel name\t: AMD RYZEN AI MAX+ 395\nmicrocode\t: 0xb70001e\n\nmodel name\t: other\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\n"


def test_model_and_microcode_are_the_first_processor_s():
    assert host.cpu_model(X86) == "AMD RYZEN AI MAX+ 395"
    assert host.microcode(X86) == "0xb70001e"


def test_a_kernel_that_names_no_model_gives_the_architecture():
    assert host.cpu_model(ARM) in ("x86_64", "aarch64")
    assert host.microcode(ARM) == ""


def test_this_machine_can_be_read():
    assert host.cpu_model() and host.kernel()
