package main

import (
	"net"
	"os"
	"testing"

	"bulkhead/test/system/throwaway"
)

// TestNobodyHearsItself has the kernel choose among two ports, one of which is
// what is connected to.
func TestNobodyHearsItself(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and a throwaway host")
	}
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40001"), 0o644); err != nil {
			t.Fatal(err)
		}
		heard := 0
		for range 200 {
			c, err := net.Dial("udp", "127.0.0.1:40000")
			if err != nil {
				t.Fatal(err)
			}
			if c.LocalAddr().String() == "127.0.0.1:40000" {
				heard++
			}
			_ = c.Close()
			o, err := dialOther("udp", "127.0.0.1:40000")
			if err != nil {
				t.Fatal(err)
			}
			if o.LocalAddr().String() == "127.0.0.1:40000" {
				t.Fatal("it is connected to itself")
			}
			_ = o.Close()
		}
		if heard == 0 {
			t.Error("no plain socket was connected to itself: this shows nothing")
		}
	})
}

func TestForgedTokensLookLikeTokens(t *testing.T) {
	all := forgeries("pair", "writer")
	for what, token := range all {
		dots := 0
		for _, c := range token {
			if c == '.' {
				dots++
			}
		}
		if dots != 2 {
			t.Errorf("%s is no token in compact form: %s", what, token)
		}
	}
	if len(all) < 5 {
		t.Errorf("%d forgeries", len(all))
	}
}

func TestWhatIsCutToItsLengthStaysAsItIs(t *testing.T) {
	path := t.TempDir() + "/log"
	if err := os.WriteFile(path, []byte("one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cutToLength(path); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "one\n" {
		t.Errorf("%q %v", raw, err)
	}
}
