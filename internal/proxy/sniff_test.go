package proxy

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/team"
)

// said is a client that says b and then waits (or has ended).
type said struct {
	net.Conn
	r io.Reader
}

func (s said) Read(b []byte) (int, error) { return s.r.Read(b) }

func client(t testing.TB, b []byte) net.Conn {
	t.Helper()
	here, there := net.Pipe()
	t.Cleanup(func() { _ = here.Close(); _ = there.Close() })
	return said{here, bytes.NewReader(b)}
}

// clientHello gives what crypto/tls says first.
func clientHello(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	var out bytes.Buffer
	here, there := net.Pipe()
	_ = there.Close()
	_ = tls.Client(writes{here, &out}, cfg).Handshake()
	if out.Len() == 0 {
		t.Fatal("no ClientHello")
	}
	return out.Bytes()
}

type writes struct {
	net.Conn
	w io.Writer
}

func (w writes) Write(b []byte) (int, error) { return w.w.Write(b) }

func asked(name string, port uint16) target {
	h, _ := dial.Normalise(name)
	return target{host: h, port: port, dest: team.Destination{Host: h.Name, Address: h.Addr, Port: port, SNI: team.SNIExact}}
}

// sslv2 is a ClientHello in SSLv2's form: three bytes of ciphers, no session, a
// challenge of 16.
func sslv2(version string) string {
	return "\x80\x1c\x01" + version + "\x00\x03\x00\x00\x00\x10\x00\x00\x2f" + strings.Repeat("c", 16)
}

func TestFirstBytesAreJudgedByWhatTheyAre(t *testing.T) {
	hello := func(name string) string {
		return string(clientHello(t, &tls.Config{ServerName: name, InsecureSkipVerify: true})) // #nosec G402 -- nothing is connected
	}
	ech := hello("api.example.com")
	// Turn an extension that servers may ignore (renegotiation_info, ff01)
	// into encrypted_client_hello.
	ech = strings.Replace(ech, "\xff\x01\x00\x01\x00", "\xfe\x0d\x00\x01\x00", 1)
	for name, c := range map[string]struct {
		says string
		port uint16
		kind kind
		code deny.Code
	}{
		"the right name":                    {hello("api.example.com"), 443, kindTLS, ""},
		"the right name in capitals":        {hello("API.Example.COM"), 443, kindTLS, ""},
		"the right name on another port":    {hello("api.example.com"), 8443, kindTLS, ""},
		"another name":                      {hello("evil.example"), 443, kindTLS, deny.NameMismatch},
		"another name on another port":      {hello("evil.example"), 8443, kindTLS, deny.NameMismatch},
		"no name":                           {hello(""), 443, kindTLS, deny.NoServerName},
		"encrypted ClientHello":             {ech, 443, kindTLS, deny.NoServerName},
		"half a ClientHello":                {hello("api.example.com")[:60], 443, kindTLS, deny.NoServerName},
		"rubbish that begins like TLS":      {"\x16\x03\x01\xff\xff" + strings.Repeat("a", 70000), 443, kindTLS, deny.NoServerName},
		"a warning before a ClientHello":    {"\x15\x03\x01\x00\x02\x01\x5a" + hello("evil.example"), 8443, kindTLS, deny.NoServerName},
		"ChangeCipherSpec before it":        {"\x14\x03\x03\x00\x01\x01" + hello("api.example.com"), 8443, kindTLS, deny.NoServerName},
		"an empty record before it":         {"\x14\x03\xff\x00\x00" + hello("evil.example"), 8443, kindTLS, deny.NoServerName},
		"SSLv2's form, an odd version":      {sslv2("\x03\xff"), 8443, kindTLS, deny.NoServerName},
		"SSLv2's form of TLS 1.2":           {sslv2("\x03\x03"), 8443, kindTLS, deny.NoServerName},
		"SSLv2":                             {sslv2("\x00\x02"), 8443, kindTLS, deny.NoServerName},
		"SSLv2's form on 443":               {sslv2("\x03\x03"), 443, kindOther, deny.NoServerName},
		"what is almost SSLv2's form":       {sslv2("\x03\x03")[:10] + "\x11" + strings.Repeat("c", 16), 8443, kindOther, ""},
		"Sun RPC":                           {"\x80\x00\x01\x28\x00\x00\x00\x00\x00\x00\x00\x02" + strings.Repeat("\x00", 284), 2049, kindOther, ""},
		"half of what may be a record":      {"\x15", 8443, kindOther, ""},
		"another binary protocol":           {"\x15\x04\x00\x01", 9000, kindOther, ""},
		"HTTP on 443":                       {"GET / HTTP/1.1\r\n", 443, kindOther, deny.NoServerName},
		"ssh on 443":                        {"SSH-2.0-x\r\n", 443, kindOther, deny.NoServerName},
		"HTTP":                              {"GET / HTTP/1.1\r\nHost: evil\r\n\r\n", 80, kindHTTP, ""},
		"HTTP after empty lines":            {"\r\n\r\nGET / HTTP/1.1\r\n", 80, kindHTTP, ""},
		"HTTP with a tab and small letters": {"get\t/\thttp/1.1\r\n", 80, kindHTTP, ""},
		"HTTP after a space":                {" GET / HTTP/1.1\r\n", 80, kindHTTP, ""},
		"HTTP after odd white space":        {"\x0b\x1c\xa0GET / HTTP/1.1\r\n", 80, kindHTTP, ""},
		"HTTP with odd white space in it":   {"GET\x0b/\x1fHTTP/1.1\r\n", 80, kindHTTP, ""},
		"HTTP/0.9":                          {"GET /\r\n", 80, kindHTTP, ""},
		"HTTP/0.9 to another host":          {"GET http://evil/\r\n", 80, kindHTTP, ""},
		"HTTP/0.9 with odd white space":     {"GET\x85http://evil/\r\n", 80, kindHTTP, ""},
		"HTTP/0.9 that ends without a line": {"GET http://evil/", 80, kindHTTP, ""},
		"HTTP/0.9 with a control character": {"GET http://evil/\x01\r\n", 80, kindHTTP, ""},
		"HTTP with a control character":     {"GET /\x01 HTTP/1.1\r\n", 80, kindHTTP, ""},
		"LDAP":                              {"\x30\x0c\x02\x01\x01\x60\x07\x02\x01\x03\x04\x00\x80\x00", 389, kindOther, ""},
		"mail":                              {"EHLO me.example\r\n", 25, kindOther, ""},
		"memcached":                         {"get key\r\n", 11211, kindOther, ""},
		"amqp":                              {"AMQP\x00\x00\x09\x01", 5672, kindOther, ""},
		"HTTP/2 with prior knowledge":       {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 80, kindHTTP, ""},
		"ssh":                               {"SSH-2.0-x\r\n", 22, kindOther, ""},
		"git":                               {"0032git-upload-pack /project.git\x00host=x\x00", 9418, kindOther, ""},
		"redis":                             {"*1\r\n$4\r\nPING\r\n", 6379, kindOther, ""},
		"a binary protocol":                 {"\x00\x00\x00\x08\x04\xd2\x16\x2f", 5432, kindOther, ""},
		"an endless first line":             {strings.Repeat("A", 80000), 80, kindOther, deny.BadTarget},
		"nothing":                           {"", 443, kindOther, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, kind, reason := firstBytes(client(t, []byte(c.says)), nil, asked("api.example.com", c.port))
			code := deny.Code("")
			if reason != nil {
				code = reason.Code
			}
			if kind != c.kind || code != c.code {
				t.Fatalf("kind %d, %v; want %d, %q", kind, reason, c.kind, c.code)
			}
			if !strings.HasPrefix(c.says, string(got)) || reason == nil && c.says != "" && len(got) == 0 {
				t.Fatalf("%d bytes would be passed on of %d, or other ones", len(got), len(c.says))
			}
		})
	}
	for name, dest := range map[string]team.Destination{
		"sni any": {Host: "api.example.com", Port: 443, SNI: team.SNIAny}, "by address": {Address: netip.MustParseAddr("192.0.2.7"), Port: 443},
	} {
		h := asked("api.example.com", 443)
		if dest.Address.IsValid() {
			h = asked("192.0.2.7", 443)
		}
		h.dest = dest
		if _, _, reason := firstBytes(client(t, []byte(hello("evil.example"))), nil, h); reason != nil {
			t.Errorf("%s: %v", name, reason)
		}
	}
}

func TestAuthorities(t *testing.T) {
	data, err := os.ReadFile("testdata/authorities.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for l := range strings.Lines(string(data)) {
		if l = strings.TrimRight(l, "\n"); l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		n++
		f := strings.Split(l, " | ")
		host, port, err := split(f[0], "80")
		got := "refused"
		if err == nil {
			got = host + " " + strconv.Itoa(int(port))
		}
		if got != f[1] {
			t.Errorf("%q: %s, want %s", f[0], got, f[1])
		}
	}
	if n == 0 {
		t.Fatal("no cases")
	}
}

func FuzzClientHello(f *testing.F) {
	f.Add(clientHello(f, &tls.Config{ServerName: "api.example.com"}))
	f.Add(clientHello(f, &tls.Config{ServerName: "evil.example", MaxVersion: tls.VersionTLS12}))
	f.Add([]byte("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, _, reason := firstBytes(client(t, b), nil, asked("api.example.com", 443))
		if !bytes.HasPrefix(b, got) {
			t.Fatal("other bytes than the client's would be passed on")
		}
		if reason == nil && len(b) > 0 && !bytes.Contains(bytes.ToLower(b), []byte("api.example.com")) {
			t.Fatal("passed without the name in it")
		}
	})
}

func FuzzConnectTarget(f *testing.F) {
	for _, s := range []string{"api.example.com:443", "[2001:db8::7]:443", "a:b:c", ":443", "x:+1", "x:00443", "[::1]", "x:0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, port, err := split(s, "")
		if err == nil && (host == "" || port == 0) {
			t.Fatalf("%q gives %q %d", s, host, port)
		}
	})
}
