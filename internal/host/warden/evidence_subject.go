package warden

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/attest"
)

// subjects says what evidence is about, by digest, and in open what has none.
func (w *Warden) subjects(t *teamRun) (subject, configuration []attest.Resource, open []string, err error) {
	kernel, err := kernelResource()
	if err != nil {
		return nil, nil, nil, err
	}
	subject = []attest.Resource{{Name: "manifest", Digest: sha256Of(t.raw), Annotations: map[string]string{"team": t.name}}, kernel}
	w.mu.Lock()
	agents := t.sorted()
	w.mu.Unlock()
	for _, a := range agents {
		if a.Want.Image == "" {
			open = append(open, fmt.Sprintf("the root of %s is the folder %s, which has no digest: the evidence does not say what was in it", a.Place.Name, a.Want.Rootfs))
			continue
		}
		r, err := w.imageResource(a)
		if err != nil {
			open = append(open, fmt.Sprintf("the image of %s: %v", a.Place.Name, err))
			continue
		}
		subject = append(subject, r)
		if why := a.anotherRoot(); why != "" {
			open = append(open, why)
		}
	}
	self := w.cfg.Self
	if self == "" {
		self = "/proc/self/exe"
	}
	for _, p := range []struct{ name, path string }{{"bulkhead-warden", self}, {probeProgram, filepath.Join(w.programs, probeProgram)}} {
		d, err := sha256OfFile(p.path)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("warden: digest of %s: %w", p.path, err)
		}
		configuration = append(configuration, attest.Resource{Name: "program " + p.name, Digest: d})
	}
	if len(t.state.Presets) > 0 {
		raw, err := json.Marshal(t.state.Presets) // maps are in order
		if err != nil {
			return nil, nil, nil, fmt.Errorf("warden: %w", err)
		}
		configuration = append(configuration, attest.Resource{Name: "presets", Digest: sha256Of(raw)})
	}
	return subject, configuration, open, nil
}

// imageResource is an image by the digest that the store wrote when it was
// imported, into a folder of root's.
func (w *Warden) imageResource(a *agentRun) (attest.Resource, error) {
	var info struct {
		Digest string `json:"digest"`
		Source string `json:"source"`
	}
	path := filepath.Join(w.host.Image(a.Want.Image), "image.json")
	if ok, err := readJSON(path, &info); err != nil || !ok {
		return attest.Resource{}, fmt.Errorf("%s cannot be read: %w", path, orMissing(err))
	}
	sum, ok := strings.CutPrefix(info.Digest, "sha256:")
	if raw, err := hex.DecodeString(sum); !ok || err != nil || len(raw) != sha256.Size {
		return attest.Resource{}, fmt.Errorf("%s holds no digest", path)
	}
	return attest.Resource{
		Name: "image of " + a.Place.Name, Digest: map[string]string{"sha256": sum},
		Annotations: map[string]string{"image": a.Want.Image, "source": info.Source},
	}, nil
}

func orMissing(err error) error {
	if err == nil {
		return os.ErrNotExist
	}
	return err
}

// anotherRoot says when a running agent's root is not the image's: one that was
// imported again meanwhile is taken at the next start.
func (a *agentRun) anotherRoot() string {
	path := filepath.Join(a.w.host.Image(a.Want.Image), "rootfs")
	var want, have unix.Stat_t
	if unix.Stat(path, &want) != nil {
		return fmt.Sprintf("the image %s of %s is not in the store any more", a.Want.Image, a.Place.Name)
	}
	for _, c := range a.containers(a.w.ctx) {
		if c.Name != runtimeName || !c.Running {
			continue
		}
		if err := unix.Stat(fmt.Sprintf("/proc/%d/root", c.PID), &have); err != nil {
			return fmt.Sprintf("the root of %s cannot be looked at: %v", a.Place.Name, err)
		}
		if have.Ino != want.Ino || have.Dev != want.Dev {
			return fmt.Sprintf("%s runs on another root than %s: the image was imported again after its start, or an overlay lies over it", a.Place.Name, path)
		}
	}
	return ""
}

// kernelResource identifies the kernel: SHA-256 of its release, version and
// machine, a line each, and its notes (/sys/kernel/notes), which hold the build id
// that its linker gave it.
func kernelResource() (attest.Resource, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return attest.Resource{}, fmt.Errorf("warden: uname: %w", err)
	}
	var b bytes.Buffer
	about := map[string]string{}
	for _, f := range []struct {
		name string
		text []byte
	}{{"release", u.Release[:]}, {"version", u.Version[:]}, {"machine", u.Machine[:]}} {
		about[f.name] = unix.ByteSliceToString(f.text)
		fmt.Fprintln(&b, about[f.name])
	}
	notes, err := os.ReadFile("/sys/kernel/notes")
	if err != nil {
		about["notes"] = "none: /sys/kernel/notes cannot be read here"
	}
	b.Write(notes)
	return attest.Resource{Name: "kernel", Digest: sha256Of(b.Bytes()), Annotations: about}, nil
}

func sha256Of(b []byte) map[string]string {
	sum := sha256.Sum256(b)
	return map[string]string{"sha256": hex.EncodeToString(sum[:])}
}

func sha256OfFile(path string) (map[string]string, error) {
	f, err := os.Open(path) // #nosec G304 -- our own programs
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, err
	}
	return map[string]string{"sha256": hex.EncodeToString(h.Sum(nil))}, nil
}

// neverCovered is what neither attacks nor proofs can show, on any host.
var neverCovered = []string{
	"errors of the kernel: what it holds is read back, what it does with that is only tried",
	"the truth of this host's root: a signature says which warden saw something, and root could have made it say anything",
	"Landlock, which no kernel reads back: it is attacked, not proven",
	"what a listed destination does with what an agent sends it",
	"covert channels between agents that share processors, caches and memory bandwidth",
}

func (w *Warden) notCovered(t *teamRun, noControls bool) []string {
	out := append([]string{}, neverCovered...)
	for _, l := range t.state.Accepted {
		out = append(out, "the layer "+l+" in full: the operator accepted that this host lacks a part of it (up --accept-missing)")
	}
	if noControls {
		out = append(out, "whether each refusal comes from the layer that is named: the controls were skipped")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range t.sorted() {
		if a.relayed(runtimeName) {
			out = append(out, "the system calls of "+a.Place.Name+", which gVisor answers by its own filters (ociRuntime: runsc)")
		}
		if u := a.Want.Upstream; u != nil {
			out = append(out, "what the upstream proxy does with the names that "+a.Place.Name+" asks it for")
		}
		if len(a.Want.Mounts) > 0 {
			out = append(out, "what is in the host's folders that "+a.Place.Name+" may read")
		}
	}
	return out
}
