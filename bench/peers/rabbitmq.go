package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"bulkhead/bench/load"
)

// rabbitID has no rights and no name.
const rabbitID = 70004

// startRabbitMQ runs a broker of its own below dir, on loopback.
func startRabbitMQ(dir string) (string, func(), error) {
	exe := "/usr/lib/rabbitmq/bin/rabbitmq-server" // the one in PATH insists on a user of the package
	if _, err := os.Stat(exe); err != nil {
		return "", nil, errors.New("RabbitMQ is not installed (Debian: rabbitmq-server)")
	}
	port, dist := freePort(), freePort()
	conf := filepath.Join(dir, "rabbitmq.conf")
	text := fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d\nlog.console = false\nlog.file.level = error\n", port)
	if err := errors.Join(os.WriteFile(conf, []byte(text), 0o644), os.WriteFile(filepath.Join(dir, "plugins"), []byte("[].\n"), 0o644), os.Chown(dir, rabbitID, rabbitID)); err != nil {
		return "", nil, err
	}
	cmd := exec.Command(exe)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=/usr/sbin:/usr/bin:/bin", "LC_ALL=C.UTF-8", "HOME=" + dir, "RABBITMQ_NODENAME=bench@localhost",
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(dir, "mnesia"), "RABBITMQ_LOG_BASE=" + filepath.Join(dir, "log"),
		"RABBITMQ_CONFIG_FILE=" + strings.TrimSuffix(conf, ".conf"), "RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(dir, "plugins"),
		"RABBITMQ_CONF_ENV_FILE=/dev/null", fmt.Sprint("RABBITMQ_DIST_PORT=", dist), "ERL_EPMD_ADDRESS=127.0.0.1",
		fmt.Sprint("ERL_EPMD_PORT=", freePort()),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: rabbitID, Gid: rabbitID}, Setpgid: true}
	log, err := os.Create(filepath.Join(dir, "console"))
	if err != nil {
		return "", nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop := func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its own group, epmd with it
		_ = cmd.Wait()
	}
	address := fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", port)
	for range 600 {
		c, err := amqp.Dial(address)
		if err == nil {
			return address, stop, c.Close()
		}
		time.Sleep(100 * time.Millisecond)
	}
	stop()
	said, _ := os.ReadFile(filepath.Join(dir, "console"))
	return "", nil, fmt.Errorf("RabbitMQ does not answer: %.2000s", said)
}

func freePort() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

const rabbitQueue = "bench"

func sendRabbitMQ(address string, batch int) func() (load.Send, error) {
	first := true
	return func() (load.Send, error) {
		c, err := amqp.Dial(address)
		if err != nil {
			return nil, err
		}
		ch, err := c.Channel()
		if err != nil {
			return nil, err
		}
		if first {
			first = false
			if _, err := ch.QueueDelete(rabbitQueue, false, false, false); err != nil {
				return nil, err
			}
			if _, err := ch.QueueDeclare(rabbitQueue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
				return nil, err
			}
		}
		if err := ch.Confirm(false); err != nil {
			return nil, err
		}
		ctx := context.Background()
		confirms := make([]*amqp.DeferredConfirmation, batch)
		return func() error {
			for i := range confirms {
				confirms[i], err = ch.PublishWithDeferredConfirmWithContext(ctx, "", rabbitQueue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(load.Body)})
				if err != nil {
					return err
				}
			}
			for _, c := range confirms {
				if ok, err := c.WaitContext(ctx); err != nil || !ok {
					return errors.Join(errors.New("RabbitMQ did not confirm"), err)
				}
			}
			return nil
		}, nil
	}
}
