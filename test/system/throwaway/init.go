package throwaway

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// init takes over when this process was started by [Command.Run] as a stage of
// a new host. It must come before main and before the testing package, in
// every binary that uses this package, hence an init function.
func init() {
	switch os.Getenv(stageVar) {
	case "":
	case "init":
		die(stageInit())
	case "enter":
		die(stageEnter())
	default:
		die(fmt.Errorf("throwaway: unknown stage %q in %s: unset it", os.Getenv(stageVar), stageVar))
	}
}

func die(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(125) // as docker and podman: the container itself failed
	}
}

func readPlan() (*plan, error) {
	var p plan
	if err := json.Unmarshal([]byte(os.Getenv(planVar)), &p); err != nil {
		return nil, fmt.Errorf("throwaway: %s: %w", planVar, err)
	}
	return &p, nil
}

// stageInit is PID 1: it builds the host, starts the command and reaps.
func stageInit() error {
	if os.Getpid() != 1 {
		return fmt.Errorf("throwaway: stage init is PID %d, must be PID 1 of a new namespace: unset %s", os.Getpid(), stageVar)
	}
	p, err := readPlan()
	if err != nil {
		return err
	}
	syscall.Umask(0o022) // the modes of the host's folders, whatever the caller's
	links := groupLinks()
	if err := p.enterGroups(); err != nil {
		return err
	}
	if err := p.makeRoot(); err != nil {
		return err
	}
	if err := syscall.Sethostname([]byte("throwaway")); err != nil {
		return fmt.Errorf("throwaway: set host name: %w", err)
	}
	if err := makeNetwork(); err != nil {
		return err
	}
	for name, target := range links {
		p.Groups = append(p.Groups, hierarchy{Type: "link", Mount: name, Data: target})
	}
	code, err := p.supervise()
	if err != nil {
		return err
	}
	os.Exit(code) // ends every process of the host
	return nil
}

// makeNetwork brings the loopback up, with the world outside on it.
func makeNetwork() error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"address", "add", Listed.String() + "/32", "dev", "lo"},
		{"address", "add", Unlisted.String() + "/32", "dev", "lo"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil { // #nosec G204 -- constants
			return fmt.Errorf("throwaway: ip %s: %w: %s(install iproute2)", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// supervise starts the second stage in a cgroup namespace of its own and reaps
// every orphan until it ends; its exit code is the host's.
func (p *plan) supervise() (int, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return 0, fmt.Errorf("throwaway: plan: %w", err)
	}
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	for fd := 3; ; fd++ { // ExtraFiles of the starter, as they came: contiguous and not close-on-exec
		flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
		if errno != 0 || flags&syscall.FD_CLOEXEC != 0 {
			break
		}
		files = append(files, os.NewFile(uintptr(fd), "extra"))
	}
	child, err := os.StartProcess(p.Exe, []string{"throwaway-enter"}, &os.ProcAttr{
		Env:   append(without(os.Environ(), stageVar, planVar), stageVar+"=enter", planVar+"="+string(text)),
		Files: files,
		Sys:   &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWCGROUP},
	})
	if err != nil {
		return 0, fmt.Errorf("throwaway: start the host's command: %w", err)
	}
	pass := make(chan os.Signal, 8)
	signal.Notify(pass, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() { // owned by PID 1: ends with the host
		for s := range pass {
			_ = child.Signal(s)
		}
	}()
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 0, fmt.Errorf("throwaway: reap: %w", err)
		case pid == child.Pid && ws.Signaled():
			return 128 + int(ws.Signal()), nil
		case pid == child.Pid && ws.Exited():
			return ws.ExitStatus(), nil
		}
	}
}

// stageEnter mounts what only a process of the cgroup namespace can, leaves
// the marker and becomes the host's command.
func stageEnter() error {
	if os.Getppid() != 1 {
		return fmt.Errorf("throwaway: stage enter is not a child of a host's PID 1: unset %s", stageVar)
	}
	p, err := readPlan()
	if err != nil {
		return err
	}
	links := map[string]string{}
	var groups []hierarchy
	for _, g := range p.Groups {
		if g.Type == "link" {
			links[g.Mount] = g.Data
		} else {
			groups = append(groups, g)
		}
	}
	p.Groups = groups
	if err := p.mountGroups(links); err != nil {
		return err
	}
	if err := writeMarker(p.ID); err != nil {
		return err
	}
	if err := os.Chdir(p.Cwd); err != nil {
		return fmt.Errorf("throwaway: %w", err)
	}
	path, err := exec.LookPath(p.Argv[0])
	if err != nil {
		return fmt.Errorf("throwaway: %w", err)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(p.Cwd, path)
	}
	env := append(without(os.Environ(), stageVar, planVar), "TMPDIR=/tmp")
	return fmt.Errorf("throwaway: start %s: %w", path, syscall.Exec(path, p.Argv, env)) // #nosec G204 -- the caller's own command
}

// without drops variables from an environment.
func without(env []string, names ...string) []string {
	var kept []string
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		drop := false
		for _, n := range names {
			drop = drop || n == name
		}
		if !drop {
			kept = append(kept, e)
		}
	}
	return kept
}
