package system

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// steps are what a RUN step finds about itself, told by the step.
const steps = `FROM bb
ENV GREETING="hello there" PATH=$PATH:/opt/tool
ARG WHERE=/srv/app
WORKDIR ${WHERE}
COPY tool.sh ../../opt/tool/tool
COPY data /data/
COPY data/a.txt renamed.txt
RUN tool "$GREETING" > said.txt && test "$(pwd)" = /srv/app
RUN ["cp", "said.txt", "copy.txt"]
RUN chown 33:33 copy.txt && chmod 6755 copy.txt && ln copy.txt hard && id -u > /srv/uid
RUN wget -q -O /srv/page http://listed.example:8080/
RUN cat /proc/self/status > /srv/status; cat /proc/net/dev > /srv/net; ls -a / > /srv/root; ls /proc > /srv/proc; ls /dev > /srv/dev; ulimit -n > /srv/nofile; cat /proc/self/cgroup > /srv/cgroup
RUN mount -t tmpfs none /mnt 2> /srv/mount || true; unshare -r true 2> /srv/unshare || true
RUN sleep 1000 & true
USER 1000
CMD ["tool"]
`

func TestAContainerfileIsBuiltWithinWalls(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		stage.Sh(t, "echo 203.0.113.10 listed.example >> /etc/hosts; tar -C /srv/rootfs -cf /srv/bb.tar .; mkdir -p /srv/ctx/data/sub; printf '#!/bin/sh\\necho \"$1\"\\n' > /srv/ctx/tool.sh; chmod 755 /srv/ctx/tool.sh; "+
			"echo a > /srv/ctx/data/a.txt; echo b > /srv/ctx/data/sub/b.txt; echo s > /srv/ctx/data/secret; echo '**/secret' > /srv/ctx/.containerignore; echo outside > /srv/outside; ln -s ../outside /srv/ctx/leak")
		c.Run(t, "image", "import", "/srv/bb.tar", "bb")
		build := func(name, text string, flags ...string) stage.Result {
			if err := os.WriteFile("/srv/ctx/Containerfile", []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			return c.Try(t, append([]string{"image", "build", "/srv/ctx", "--name", name}, flags...)...)
		}
		t.Run("every instruction does what it says", func(t *testing.T) {
			r := build("tools", steps, "--egress", "listed.example:8080")
			t.Log(r)
			if r.Exit != 0 {
				t.Fatal("not built")
			}
			root := "/var/lib/bulkhead/images/tools/rootfs"
			read := func(name string) string {
				text, err := os.ReadFile(filepath.Join(root, name))
				if err != nil {
					t.Error(err)
				}
				return strings.TrimSpace(string(text))
			}
			for name, want := range map[string]string{
				"srv/app/said.txt": "hello there", "srv/app/copy.txt": "hello there", "srv/app/hard": "hello there", "srv/app/renamed.txt": "a",
				"data/a.txt": "a", "data/sub/b.txt": "b", "srv/page": "hello from outside", "srv/uid": "0", "srv/nofile": "4096",
				"srv/dev": "fd\nfull\nnull\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero",
			} {
				if got := read(name); got != want {
					t.Errorf("%s: %q", name, got)
				}
			}
			for name, part := range map[string]string{
				"srv/mount": "permission denied", "srv/unshare": "not permitted", "srv/cgroup": "image-build-",
				"srv/status": "Seccomp:\t2\n",
			} {
				if got := read(name); !strings.Contains(got, part) {
					t.Errorf("%s: %q", name, got)
				}
			}
			if s := read("srv/status"); !strings.Contains(s, "NoNewPrivs:\t1\n") || !strings.Contains(s, "CapEff:\t00000000000400fb\n") || !strings.Contains(s, "CapBnd:\t00000000000400fb\n") {
				t.Error(s)
			}
			if s := read("srv/net"); strings.Count(s, ":") != 1 {
				t.Errorf("more than loopback: %s", s)
			}
			if _, err := os.Lstat(filepath.Join(root, "data/secret")); !os.IsNotExist(err) {
				t.Errorf("an ignored file: %v", err)
			}
			info, err := os.Stat(filepath.Join(root, "srv/app/copy.txt"))
			if err != nil || info.Mode() != 0o755 {
				t.Errorf("%v %v: setuid must not get in", info, err)
			}
			if !strings.Contains(r.Stderr, "USER is not used") || !strings.Contains(r.Stderr, "CMD is not used") {
				t.Error("what is not used is not told")
			}
			if out := stage.Sh(t, "find /var/tmp -maxdepth 1 -name 'bulkhead-build*' -o -maxdepth 1 -name 'bulkhead-pack*' -o -maxdepth 1 -name 'bulkhead-request*'; find /sys/fs/cgroup -name 'image-build-*'"); strings.Contains(out, "bulkhead") || strings.Contains(out, "image-build") {
				t.Errorf("left behind: %s", out)
			}
		})
		for name, bad := range map[string]struct{ text, want string }{
			"a host that is not listed":           {"FROM bb\nRUN wget -q -O - http://unlisted.example:8080/", "the build asked for unlisted.example:8080"},
			"an address past the proxy":           {"FROM bb\nRUN nc 203.0.113.10 8080 < /dev/null", "Network is unreachable"},
			"a command that fails":                {"FROM bb\nRUN exit 3", "line 2: RUN: exit status 3"},
			"a device":                            {"FROM bb\nRUN mkfifo /pipe", "/pipe is neither"},
			"a link out of the context":           {"FROM bb\nCOPY leak /x", "links out of it are not followed"},
			"a link of the image that leads out":  {"FROM bb\nRUN ln -s /../../../../../../tmp/evil /out\nCOPY data /out/", "escapes"},
			"a base that is not there":            {"FROM other\nRUN true", "build, pull or import it first"},
			"two faults at once":                  {"FROM bb\nADD a b\nONBUILD x", "Containerfile:3:1: ONBUILD"},
			"a file that is not there":            {"FROM bb\nCOPY nothing /x", "nothing is not in the context"},
			"the host's tree by a process's root": {"FROM bb\nRUN ls /proc/1/root/srv/ctx/tool.sh", "No such file"},
			"writing a key of the host's kernel":  {"FROM bb\nRUN echo 1 > /proc/sys/kernel/core_pattern", "core_pattern: Permission denied"},
		} {
			t.Run(name, func(t *testing.T) {
				r := build("bad", bad.text, "--egress", "listed.example:8080")
				if r.Exit == 0 || !strings.Contains(r.Stderr, bad.want) {
					t.Error(r)
				}
				if _, err := os.Stat("/var/lib/bulkhead/images/bad"); !os.IsNotExist(err) {
					t.Errorf("an image all the same: %v", err)
				}
			})
		}
	})
}
