package confine

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTheCellsFilterRefusesWhatReachesPastNamespacesAndLetsContainersBeMade(t *testing.T) {
	r := cellRules(native(), false)
	refuse := errno(unix.EPERM)
	for _, nr := range []uint32{unix.SYS_BPF, unix.SYS_IO_URING_SETUP, unix.SYS_KEYCTL, unix.SYS_PTRACE, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_USERFAULTFD} {
		if !slices.Equal(r.calls[nr], refuse) {
			t.Errorf("call %d is not refused", nr)
		}
	}
	for _, nr := range []uint32{unix.SYS_MOUNT, unix.SYS_UNSHARE, unix.SYS_PIVOT_ROOT, unix.SYS_CLONE, unix.SYS_EXECVE, unix.SYS_SECCOMP} {
		if b, named := r.calls[nr]; named && !slices.Equal(b, ret(retAllow)) {
			t.Errorf("call %d is refused: no container could be made", nr)
		}
	}
	if !slices.Equal(r.otherwise, ret(retAllow)) {
		t.Error("an unnamed call is refused")
	}
	if _, err := compile(r); err != nil {
		t.Fatal(err)
	}
}
