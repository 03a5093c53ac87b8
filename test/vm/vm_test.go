//go:build vm

package vm

import (
	"bytes"
	"testing"
)

func TestTry(t *testing.T) {
	image, err := Open(t.Context(), ".", "trixie")
	if err != nil {
		t.Fatal(err)
	}
	m, err := Boot(t.Context(), image)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var out bytes.Buffer
	code, err := m.Run(t.Context(), &out, "sh", "-c", "uname -a; cat /sys/fs/cgroup/cgroup.controllers /sys/fs/cgroup/cgroup.subtree_control /sys/kernel/security/lsm; systemctl --version | head -1; uptime; date; nft list ruleset; echo x; dmesg | tail -3; id; ps ax | wc -l; cat /proc/self/cgroup; exit 3")
	t.Log(code, err, out.String())
}
