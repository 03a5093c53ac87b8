package cell_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/engine"
)

// TestOrdinarySoftwareRuns uses this machine's own programs on an empty root.
func TestOrdinarySoftwareRuns(t *testing.T) {
	inHost(t, func(t *testing.T, b *bench) {
		for name, c := range map[string]struct{ needs, script, want string }{
			"bash":   {"/usr/bin/bash", `x=(1 2 3); echo $((${#x[@]}+1)) | (read n; echo got $n); sleep 0.01 & wait`, "got 4"},
			"git":    {"/usr/bin/git", `cd /tmp && git -c init.defaultBranch=m init -q r && cd r && echo a > a && git add a && git -c user.name=x -c user.email=x@y commit -qm m && git log --format=%s`, "m"},
			"python": {"/usr/bin/python3", `python3 -c "import subprocess, threading, socket, tempfile, multiprocessing as m; t=threading.Thread(target=print, args=('thread',)); t.start(); t.join(); print(subprocess.check_output(['echo','sub'])); p=m.Pool(2); print(p.map(abs,[-1,-2])); s=socket.socket(); s.bind(('127.0.0.1',0)); s.listen(); socket.create_connection(s.getsockname()); print(socket.getaddrinfo('127.0.0.1', 1)[0][0].name)"`, "AF_INET"},
			"node":   {"/usr/bin/node", `node -e "const{Worker}=require('worker_threads');new Worker('console.log(\"worker\")',{eval:true});require('child_process').exec('echo child',(e,o)=>console.log(e,o));require('http').createServer((q,r)=>r.end('served')).listen(0,function(){fetch('http://127.0.0.1:'+this.address().port).then(r=>r.text()).then(t=>{console.log(t);this.close()})});require('os').networkInterfaces()"`, "served"},
		} {
			t.Run(name, func(t *testing.T) {
				if _, err := os.Stat(c.needs); err != nil {
					t.Skipf("this machine has no %s", c.needs)
				}
				s := b.spec("sw-"+name, c.script)
				s.Root.Path = ""
				s.Command = []string{"/usr/bin/bash", "-c", c.script}
				s.Env = []string{"PATH=/usr/bin:/bin", "HOME=/tmp"}
				s.Limits.PIDs, s.Limits.MemoryBytes = 256, 2<<30
				s.Mounts[0].Size = 64 << 20
				s.Mounts = append(s.Mounts, engine.Mount{Kind: engine.MountBind, Source: "/usr", Target: "/usr", Exec: true})
				for _, lib := range []string{"/lib", "/lib64", "/bin"} {
					real, err := filepath.EvalSymlinks(lib)
					if err != nil {
						continue
					}
					s.Mounts = append(s.Mounts, engine.Mount{Kind: engine.MountBind, Source: real, Target: lib, Exec: true})
				}
				b.t = t
				out, exit := b.run(s)
				if exit.Code != 0 || !strings.Contains(out, c.want) {
					t.Errorf("%v, want %q in\n%s", exit, c.want, out)
				}
				t.Log(out)
			})
		}
	})
}
