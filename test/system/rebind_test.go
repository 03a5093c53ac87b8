package system

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"bulkhead/internal/deny"
	"bulkhead/internal/evidence"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// fickle is a DNS server whose answers change with each question for an
// address: those of its map, one after the other, and the last one from then on.
type fickle struct {
	mu    sync.Mutex
	asked map[string]int // guarded by mu
	says  map[string][][]string
}

func (f *fickle) answer(name string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.says[name]
	n := f.asked[name]
	f.asked[name]++
	if len(list) == 0 {
		return nil
	}
	return list[min(n, len(list)-1)]
}

func (f *fickle) serve(c net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		var q dnsmessage.Message
		if q.Unpack(buf[:n]) != nil || len(q.Questions) != 1 {
			continue
		}
		a := dnsmessage.Message{Header: dnsmessage.Header{ID: q.ID, Response: true, RecursionAvailable: true}, Questions: q.Questions}
		if q.Questions[0].Type == dnsmessage.TypeA {
			for _, ip := range f.answer(strings.TrimSuffix(q.Questions[0].Name.String(), ".")) {
				a.Answers = append(a.Answers, dnsmessage.Resource{
					Header: dnsmessage.ResourceHeader{Name: q.Questions[0].Name, Class: dnsmessage.ClassINET},
					Body:   &dnsmessage.AResource{A: netip.MustParseAddr(ip).As4()},
				})
			}
		}
		if raw, err := a.Pack(); err == nil {
			_, _ = c.WriteTo(raw, from)
		}
	}
}

// TestAListedNameThatLeadsInwardLeadsNowhere has the owner of listed names
// change where they lead between one question and the next.
func TestAListedNameThatLeadsInwardLeadsNowhere(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		const outside, inner = "8.8.4.4", "192.0.2.77" // beyond a link, and this host's own
		stage.Sh(t, `mkdir -p /run/netns; mount -t tmpfs none /run/netns
ip netns add world; ip link add out0 type veth peer name in0 netns world
ip addr add 192.0.2.1/30 dev out0; ip link set out0 up; ip addr add `+inner+`/32 dev lo
ip -n world addr add 192.0.2.2/30 dev in0; ip -n world link set in0 up; ip -n world link set lo up; ip -n world addr add `+outside+`/32 dev lo
ip route add `+outside+`/32 via 192.0.2.2
mkdir -p /srv/world; echo "the world outside" > /srv/world/index.html; ip netns exec world busybox httpd -p `+outside+`:8080 -h /srv/world
mkdir -p /srv/inner; echo "what is inside" > /srv/inner/index.html; busybox httpd -p 127.0.0.1:8080 -h /srv/inner; busybox httpd -p `+inner+`:8080 -h /srv/inner`)
		dns, err := net.ListenPacket("udp", "203.0.113.10:53")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = dns.Close() }()
		f := &fickle{asked: map[string]int{}, says: map[string][][]string{
			"good.example": {{outside}},
			"flip.example": {{outside}, {"127.0.0.1"}},
			"both.example": {{"127.0.0.1", outside}},
			"self.example": {{"127.0.0.1"}},
			"link.example": {{"169.254.169.254"}},
			"host.example": {{inner}},
			"late.example": {{"127.0.0.1"}, {outside}},
		}}
		go f.serve(dns) // until it is closed
		stage.Sh(t, `printf 'nameserver 203.0.113.10\noptions timeout:1 attempts:1\n' > /etc/resolv.conf`)
		c := host(t, bin)
		egress := []string{}
		for name := range f.says {
			egress = append(egress, "'"+name+":8080'")
		}
		write(t, c.Dir, strings.Replace(pair, "    egress: ['listed.example:8080']\n", "    tools: {allow: [net]}\n    egress: ['listed.example:8080', "+strings.Join(egress, ", ")+"]\n", 1))
		c.Run(t, "up")

		byProxy := func(name string) string {
			return c.Run(t, "exec", "writer", "--", "sh", "-c", "wget -q -O - http://"+name+":8080/ 2>&1 || true")
		}
		for _, name := range []string{"good.example", "flip.example", "both.example"} {
			for range 3 {
				if out := byProxy(name); !strings.Contains(out, "the world outside") {
					t.Errorf("%s by the proxy: %q", name, out)
				}
			}
		}
		for name, code := range map[string]deny.Code{"self.example": deny.OwnAddress, "link.example": deny.SpecialRange, "host.example": deny.OwnAddress, "late.example": deny.OwnAddress} {
			if out := byProxy(name); strings.Contains(out, "inside") || strings.Contains(out, "outside") {
				t.Errorf("%s by the proxy: %q", name, out)
			}
			const call = `body='{"url":"http://'$1':8080/"}'; p=${http_proxy#http://}; { printf 'POST http://bulkhead.internal/v1/tools/net_http_get HTTP/1.0\r\nHost: bulkhead.internal\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "$(cat /run/bulkhead-token)" ${#body} "$body"; sleep 60 & echo $! > /tmp/open; wait; } | { nc ${p%:*} ${p##*:}; kill $(cat /tmp/open); }`
			if out := c.Run(t, "exec", "writer", "--", "sh", "-c", call, "sh", name); !strings.Contains(out, string(code)) && !strings.Contains(out, string(deny.SpecialRange)) || strings.Contains(out, "what is inside") {
				t.Errorf("net_http_get of %s: %q", name, out)
			}
		}
		r, report := verify(t, c, "writer", "--no-controls")
		if r.Exit != 0 {
			t.Errorf("%s", report.Text())
		}
		i := slices.IndexFunc(report.Rows, func(x evidence.Row) bool { return x.Attack == "dialer.rebind" })
		if i < 0 || report.Rows[i].Verdict != evidence.Denied {
			t.Fatalf("%+v", report.Rows)
		}
		t.Log(report.Rows[i].Evidence)
		c.Run(t, "down")
	})
}
