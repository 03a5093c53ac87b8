package vm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnavailable says that this machine cannot have virtual hosts; the text
// around it says what is missing.
var ErrUnavailable = errors.New("QEMU cannot be had")

// Image is a Debian host that can be booted.
type Image struct {
	Suite string // "trixie"
	Dir   string // root.img, vmlinuz, initrd, and saved states
	qemu  []string
	state string // names the saved state that fits this QEMU and this hardware
}

// kernelLine makes the boot quick; panic=-1 with -no-reboot ends QEMU when the
// kernel panics, instead of leaving the test waiting.
const kernelLine = "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nowatchdog random.trust_cpu=on systemd.show_status=0 net.ifnames=0"

// Open makes the image of a suite, or takes the cached one. source is the
// folder of this package's scripts.
func Open(ctx context.Context, source, suite string) (*Image, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("vm: making an image needs root: %w", ErrUnavailable)
	}
	source, err := filepath.Abs(source)
	if err != nil {
		return nil, fmt.Errorf("vm: %w", err)
	}
	qemu, err := script(ctx, filepath.Join(source, "qemu"))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	dir, err := script(ctx, filepath.Join(source, "image"), suite)
	if err != nil {
		return nil, err
	}
	i := &Image{Suite: suite, Dir: strings.TrimSpace(dir), qemu: strings.Split(strings.TrimSpace(qemu), "\n")}
	version, err := exec.CommandContext(ctx, i.qemu[0], "--version").Output() // #nosec G204 -- the project's own script chose it
	if err != nil {
		return nil, fmt.Errorf("%w: %s --version: %w", ErrUnavailable, i.qemu[0], err)
	}
	sum := sha256.Sum256([]byte(string(version) + strings.Join(i.hardware(), "\x00") + kernelLine + settled))
	i.state = "booted-" + hex.EncodeToString(sum[:5])
	return i, nil
}

// script runs one of this package's scripts and returns what it printed.
func script(ctx context.Context, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...) // #nosec G204 -- this package's own scripts
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("vm: %s: %w: %s", filepath.Base(path), err, bytes.TrimSpace(said.Bytes()))
	}
	return string(out), nil
}

// hardware is what a saved state depends on.
func (i *Image) hardware() []string {
	accel, cpu := "tcg,thread=multi,tb-size=512", "Nehalem" // translates fastest of the models that Debian runs on
	if kvm() {
		accel, cpu = "kvm", "host"
	}
	return []string{
		"-machine", "q35", "-accel", accel, "-cpu", cpu, "-smp", "2", "-m", "2048",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-device", "virtio-rng-pci", "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=bulkhead.vm",
		"-netdev", "user,id=net,restrict=on", "-device", "virtio-net-pci,netdev=net,romfile=",
	}
}

// kvm says whether the processor's own virtualisation can be used. Some cloud
// machines have a /dev/kvm of another make that cannot run a stock kernel.
func kvm() bool {
	if unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) != nil {
		return false
	}
	for _, module := range []string{"kvm_intel", "kvm_amd"} {
		if _, err := os.Stat("/sys/module/" + module); err == nil {
			return true
		}
	}
	return false
}

func (i *Image) savedDisk() string   { return filepath.Join(i.Dir, i.state+".qcow2") }
func (i *Image) savedMemory() string { return filepath.Join(i.Dir, i.state+".memory") }
func (i *Image) savedMark() string   { return filepath.Join(i.Dir, i.state+".complete") }

// lock waits until this process may have the one machine.
func (i *Image) lock(ctx context.Context) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(filepath.Dir(i.Dir), "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("vm: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) // #nosec G115 -- a descriptor
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("vm: lock: %w", err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("vm: another virtual host is running: %w", ctx.Err()), f.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// save boots the host once and keeps its memory and disk. The caller holds the
// lock.
func (i *Image) save(ctx context.Context) error {
	if _, err := os.Stat(i.savedMark()); err == nil {
		return nil
	}
	// What the very first boot makes once (machine id, AppArmor's compiled
	// profiles) is kept in the disk below the saved one.
	first := filepath.Join(i.Dir, "first-boot.complete")
	if _, err := os.Stat(first); err != nil {
		if err := i.firstBoot(ctx); err != nil {
			return err
		}
		if err := os.WriteFile(first, nil, 0o600); err != nil {
			return fmt.Errorf("vm: %w", err)
		}
	}
	_ = os.Remove(i.savedDisk()) // of a run that was cut short
	if _, err := script(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "root.img", i.savedDisk()); err != nil {
		return err
	}
	m, err := i.cold(ctx, "file="+i.savedDisk()+",format=qcow2")
	if err != nil {
		return err
	}
	if err := m.saveTo(ctx, i.savedMemory()); err != nil {
		return m.failed(err)
	}
	if err := m.Close(); err != nil {
		return err
	}
	if err := os.WriteFile(i.savedMark(), nil, 0o600); err != nil {
		return fmt.Errorf("vm: %w", err)
	}
	return nil
}

func (i *Image) firstBoot(ctx context.Context) error {
	m, err := i.cold(ctx, "file="+filepath.Join(i.Dir, "root.img")+",format=raw")
	if err != nil {
		return err
	}
	if _, err := m.request(ctx, request{Op: "off"}, nil, io.Discard); err != nil {
		return m.failed(err)
	}
	select {
	case <-m.exited:
	case <-time.After(bootPatience):
		return m.failed(errors.New("vm: the host does not power off"))
	}
	return m.Close()
}

// cold boots the host from nothing and waits until systemd has settled.
func (i *Image) cold(ctx context.Context, disk string) (*Machine, error) {
	ctx, cancel := context.WithTimeout(ctx, bootPatience)
	defer cancel()
	m, err := start(ctx, i, disk)
	if err != nil {
		return nil, err
	}
	if err := m.ping(ctx); err != nil {
		return nil, m.failed(err)
	}
	var said bytes.Buffer
	if _, err := m.Run(ctx, &said, "sh", "-c", settled); err != nil {
		return nil, m.failed(err)
	}
	if strings.TrimSpace(said.String()) != "running" {
		return nil, m.failed(fmt.Errorf("vm: the host did not come up whole: %s", &said))
	}
	return m, nil
}

// saveTo stops the machine and writes its memory to a file; it is dead after.
func (m *Machine) saveTo(ctx context.Context, file string) error {
	if _, err := m.Run(ctx, io.Discard, "sync"); err != nil {
		return err
	}
	_ = m.line.Close() // so that the state holds no half-open connection
	q, err := m.monitor(ctx)
	if err != nil {
		return err
	}
	defer q.close()
	for _, step := range []struct {
		command   string
		arguments map[string]any
	}{
		{"stop", nil},
		{"migrate-set-parameters", map[string]any{"max-bandwidth": int64(1) << 40}},
		{"migrate", map[string]any{"uri": "exec:cat > '" + file + "'"}},
	} {
		if err := q.do(step.command, step.arguments); err != nil {
			return err
		}
	}
	if err := q.until("query-migrate", "completed"); err != nil {
		return err
	}
	if err := q.do("quit", nil); err != nil {
		return err
	}
	<-m.exited
	return nil
}
