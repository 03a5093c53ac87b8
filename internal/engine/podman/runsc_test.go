package podman

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/layout"
)

func TestRunscGetsWhatItKnows(t *testing.T) {
	for text, want := range map[string]string{
		"create --bundle /b --pid-file /p --no-new-keyring --preserve-fds 2 id": "create --bundle /b --pid-file /p id",
		"--systemd-cgroup create --preserve-fds=2 id":                           "create id",
		"start id":                "start id",
		"kill id 15":              "kill id 15",
		"--log /l --version":      "--log /l --version",
		"create --preserve-fds":   "create",
		"delete --force create-1": "delete --force create-1",
	} {
		argv, create := runscArguments(strings.Fields(text))
		if argv[0] != runsc || !slices.Equal(argv[1:1+len(runscOptions())], runscOptions()) {
			t.Errorf("%q: %q does not begin with our options", text, argv)
		}
		if got := strings.Join(argv[1+len(runscOptions()):], " "); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
		if create != strings.Contains(" "+text+" ", " create ") {
			t.Errorf("%q: create is %v", text, create)
		}
	}
}

func FuzzRunscArguments(f *testing.F) {
	f.Add("create --preserve-fds 2 id")
	f.Add("--preserve-fds")
	f.Fuzz(func(t *testing.T, text string) {
		argv, _ := runscArguments(strings.Split(text, " "))
		if !slices.Equal(argv[:1+len(runscOptions())], append([]string{runsc}, runscOptions()...)) {
			t.Errorf("%q: our options are not first in %q", text, argv)
		}
		if slices.Contains(argv, "--preserve-fds") || slices.Contains(argv, "--systemd-cgroup") {
			t.Errorf("%q: %q has what runsc refuses", text, argv)
		}
	})
}

func underRunsc() engine.Spec {
	s := gateway()
	s.Name, s.Role, s.OCIRuntime = "runtime", engine.RoleRuntime, runsc
	s.User.ID = layout.RuntimeID
	s.User.Map = slices.Delete(slices.Clone(s.User.Map), 1, 2)
	return s
}

func TestEveryMountOfTheSpecIsSaidToTheSentry(t *testing.T) {
	s, opt := underRunsc(), options()
	if err := Check(&s, &opt); err != nil {
		t.Fatal(err)
	}
	argv := arguments(&s, runsc, "/.container", "/conf", "/programs/shim")
	for _, want := range [][2]string{
		{"--runtime", "/programs/shim"},
		{"--runtime-flag", "oci-runsc"},
		{"--ipc", "none"},
		{"--volume", "/.container/tmp:/tmp:rw,noexec,nosuid,nodev"},
		{"--volume", "/.container/.bulkhead:/.bulkhead:ro,exec,nosuid,nodev"},
		{"stage2", "0"},
	} {
		if !pair(argv, want[0], want[1]) {
			t.Errorf("missing %s %s in %q", want[0], want[1], argv)
		}
	}
	if in := guest(&s); in.Has(engine.MechLandlock) || !in.Has(engine.MechSeccomp) || len(s.Off) != 0 {
		t.Errorf("the guest is asked for %+v", in.Off)
	}
}

func TestSandboxWithoutOneOfItsWallsIsRefused(t *testing.T) {
	s := underRunsc()
	ids := layout.IDs{Base: base}
	id := func(n uint32) string {
		return strings.TrimSuffix(strings.Repeat(strconv.FormatUint(uint64(n), 10)+"\t", 4), "\t")
	}
	good := "Uid:\t" + id(ids.Engine()) + "\nGid:\t" + id(ids.Engine()) + "\nGroups:\t\nNoNewPrivs:\t1\nSeccomp:\t2\n" +
		"CapInh:\t0\nCapPrm:\t8141f\nCapEff:\t8141f\nCapBnd:\t8141f\nCapAmb:\t0\n"
	for name, x := range map[string]struct{ old, new, want string }{
		"all in force":        {"x", "x", ""},
		"serves for the user": {"Uid:\t" + id(ids.Engine()), "Uid:\t" + id(ids.Runtime()), ""},
		"the account's id":    {"Uid:\t" + id(ids.Engine()), "Uid:\t" + id(5000), "not all are ids"},
		"root's group":        {"Groups:\t", "Groups:\t0", "not all are ids"},
		"no filter":           {"Seccomp:\t2", "Seccomp:\t0", "seccomp mode"},
		"privileges to gain":  {"NoNewPrivs:\t1", "NoNewPrivs:\t0", "no_new_privs"},
		"CAP_SYS_ADMIN":       {"CapBnd:\t8141f", "CapBnd:\t28141f", "beyond a sandbox's (200000)"},
		"CAP_NET_RAW":         {"CapEff:\t8141f", "CapEff:\t8341f", "beyond a sandbox's (2000)"},
		"no word of groups":   {"Groups:\t\n", "", "lacks"},
	} {
		err := checkSandboxStatus(&s, strings.Replace(good, x.old, x.new, 1))
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
	}
}

func TestCarrierPassesWhatIsAccepted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as the launcher's
	c, theirs, err := newCarrier(l)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = theirs.Close() }()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		c.run()
	}()
	caller, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = caller.Close() }()
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(theirs.Fd()), b, oob, 0)
	if err != nil {
		t.Fatal(err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		t.Fatalf("%d messages, %v", len(msgs), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("%v, %v", fds, err)
	}
	inside := os.NewFile(uintptr(fds[0]), "inside")
	if _, err := inside.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	if err := inside.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(caller); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	c.close()
	<-over
}
