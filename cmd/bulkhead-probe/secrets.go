package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// secretKinds look for tokens of others where programs leave them.
func secretKinds() map[string]kind {
	return map[string]kind{
		"token.processes": {do: tokensOfProcesses},
		"token.files":     {do: tokensInFiles},
	}
}

// wanted are tokens by their length and SHA-256: a probe is given no token, and from
// the sum of one that was drawn at random nobody learns it.
type wanted map[int]map[[sha256.Size]byte]bool

// parseWanted reads "LENGTH:SUM", the sum in hexadecimal.
func parseWanted(names []string) (wanted, error) {
	w := wanted{}
	for _, n := range names {
		length, sum, _ := strings.Cut(n, ":")
		l, err := strconv.Atoi(length)
		raw, herr := hex.DecodeString(sum)
		if err != nil || herr != nil || l < 16 || l > longest || len(raw) != sha256.Size {
			return nil, fmt.Errorf("%.80q is no length and sum of a token", n)
		}
		if w[l] == nil {
			w[l] = map[[sha256.Size]byte]bool{}
		}
		w[l][[sha256.Size]byte(raw)] = true
	}
	if len(w) == 0 {
		return nil, errors.New("the request names no token")
	}
	return w, nil
}

// longest is the longest run of a token's characters that is looked into: every
// part of it as long as a token is summed.
const longest = 512

// in says whether one of the tokens stands in some bytes.
func (w wanted) in(b []byte) bool {
	for start := 0; start < len(b); {
		end := start
		for end < len(b) && ofToken(b[end]) {
			end++
		}
		if run := b[start:end]; len(run) <= longest {
			for l, sums := range w {
				for i := 0; i+l <= len(run); i++ {
					if sums[sha256.Sum256(run[i:i+l])] {
						return true
					}
				}
			}
		}
		start = end + 1
	}
	return false
}

// ofToken says whether tokens may have a character: hexadecimal, base32, base64url.
func ofToken(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' || c == '_'
}

// tokensOfProcesses looks in the arguments and the environment of every process
// that is to be seen, its own and the first one included.
func tokensOfProcesses(t *trial) error {
	w, err := parseWanted(t.Names)
	if err != nil {
		return err
	}
	pids, err := processIDs()
	if err != nil {
		return err
	}
	// What it was started with itself: being non-dumpable it may not read that in /proc.
	arguments, environments := 0, 1
	if w.in([]byte(strings.Join(os.Environ(), "\x00"))) {
		t.step("look for tokens of others in its own environment", nil)
		t.saw("its own environment has one")
		return nil
	}
	for _, pid := range pids {
		for name, seen := range map[string]*int{"cmdline": &arguments, "environ": &environments} {
			raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
			if err != nil {
				continue
			}
			if *seen++; w.in(raw) {
				t.step("look for tokens of others in "+name, nil)
				t.saw("process %d has one", pid)
				return nil
			}
		}
	}
	if arguments == 0 {
		return errors.New("no arguments of any process can be read, not even its own")
	}
	t.step(fmt.Sprintf("look for tokens of others in the arguments of %d processes and the environment of %d", arguments, environments), absent)
	return nil
}

// How much of the files is looked at, from the top down: images are large, and
// everybody waits.
const (
	filesRead = 1000
	bytesRead = 2 << 20
	ofFile    = 64 << 10
	filesTime = 2 * time.Second
)

// notFiles are folders of what is no file of an image, and of programs, which are
// many.
var notFiles = []string{"/proc", "/sys", "/dev", "/usr/lib", "/usr/lib64", "/usr/share", "/usr/bin", "/usr/sbin", "/lib", "/bin", "/sbin"}

// tokensInFiles looks in the files of its image and in what lies beside them,
// homes, mounts and dumps of memory among it.
func tokensInFiles(t *trial) error {
	w, err := parseWanted(t.Names)
	if err != nil {
		return err
	}
	until := time.Now().Add(filesTime)
	files, bytes := 0, 0
	queue := []string{"/"}
	for len(queue) > 0 && files < filesRead && bytes < bytesRead && time.Now().Before(until) {
		dir := queue[0]
		queue = queue[1:]
		list, err := os.ReadDir(dir)
		if err != nil {
			continue // it is not for this id
		}
		for _, e := range list {
			p := filepath.Join(dir, e.Name())
			if e.IsDir() {
				if !slices.Contains(notFiles, p) {
					queue = append(queue, p)
				}
				continue
			}
			raw, ok := readSome(p, e)
			if !ok {
				continue
			}
			files, bytes = files+1, bytes+len(raw)
			if w.in(raw) {
				t.step("look for tokens of others in files", nil)
				t.saw("%s has one", p)
				return nil
			}
		}
	}
	if files == 0 {
		return errors.New("no file can be read, not even one of its own image")
	}
	how := "all that there are"
	if len(queue) > 0 {
		how = "the topmost"
	}
	t.step(fmt.Sprintf("look for tokens of others in %d files, %s", files, how), absent)
	return nil
}

// readSome reads the beginning of a plain file, and of a dump of memory more.
func readSome(path string, e fs.DirEntry) ([]byte, bool) {
	if !e.Type().IsRegular() {
		return nil, false
	}
	f, err := os.Open(path) // #nosec G304 -- looking everywhere is the attack
	if err != nil {
		return nil, false
	}
	defer f.Close()
	most := ofFile
	if strings.HasPrefix(e.Name(), "core") {
		most = bytesRead / 2
	}
	raw := make([]byte, most)
	n, err := f.Read(raw)
	return raw[:n], err == nil && n > 0
}
