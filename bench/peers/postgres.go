package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"bulkhead/bench/load"
)

// queue is a table that consumers take from with FOR UPDATE SKIP LOCKED; the
// key makes a send that is repeated harmless, as ours does.
const queue = `CREATE TABLE queue (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	key uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
	taken boolean NOT NULL DEFAULT false,
	body bytea NOT NULL
); CREATE INDEX waiting ON queue (id) WHERE NOT taken`

// startPostgres makes a cluster of its own in dir, with PostgreSQL's own
// settings: fsync and synchronous_commit are on.
func startPostgres(dir string) (string, func(), error) {
	all, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(all) == 0 {
		return "", nil, errors.New("PostgreSQL is not installed (Debian: postgresql)")
	}
	bin := filepath.Dir(all[len(all)-1])
	who, err := user.Lookup("postgres") // it wants a user that has a name
	if err != nil {
		return "", nil, err
	}
	uid, err1 := strconv.Atoi(who.Uid)
	gid, err2 := strconv.Atoi(who.Gid)
	data := filepath.Join(dir, "data")
	if err := errors.Join(err1, err2, os.Mkdir(data, 0o700), os.Chown(dir, uid, gid), os.Chown(data, uid, gid)); err != nil {
		return "", nil, err
	}
	as := func(name string, args ...string) *exec.Cmd {
		c := exec.Command(filepath.Join(bin, name), args...)
		c.Dir, c.Env = dir, []string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "HOME=" + dir}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
		return c
	}
	if out, err := as("initdb", "-D", data, "-U", "postgres", "-A", "trust").CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	run, err := os.MkdirTemp("/tmp", "msgbench-pg") // a socket's path is short
	if err != nil {
		return "", nil, err
	}
	if err := os.Chown(run, uid, gid); err != nil {
		return "", nil, err
	}
	cmd := as("postgres", "-D", data, "-k", run, "-c", "listen_addresses=")
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop := func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // fast shutdown
		_ = cmd.Wait()
		_ = os.RemoveAll(run)
	}
	address := "host=" + run + " user=postgres dbname=postgres"
	for range 300 {
		c, err := pgx.Connect(context.Background(), address)
		if err != nil {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		_, err = c.Exec(context.Background(), queue)
		if err = errors.Join(err, c.Close(context.Background())); err != nil {
			stop()
			return "", nil, err
		}
		return address, stop, nil
	}
	stop()
	return "", nil, errors.New("PostgreSQL does not answer")
}

func sendPostgres(address string, batch int) func() (load.Send, error) {
	return func() (load.Send, error) {
		ctx := context.Background()
		c, err := pgx.Connect(ctx, address)
		if err != nil {
			return nil, err
		}
		bodies := make([][]byte, batch)
		for i := range bodies {
			bodies[i] = []byte(load.Body)
		}
		return func() error {
			if batch == 1 {
				_, err := c.Exec(ctx, "INSERT INTO queue (body) VALUES ($1)", bodies[0])
				return err
			}
			_, err := c.Exec(ctx, "INSERT INTO queue (body) SELECT unnest($1::bytea[])", bodies)
			return err
		}, nil
	}
}
