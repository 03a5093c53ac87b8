// Package trust makes the lists of certificate authorities that an agent's
// programs are given beside those of its image: the company's, which the
// manifest names under caFiles, and both together for programs that take one
// list only.
//
// The company's files are root's and are parsed. The image's list is a
// stranger's: it is only cut into its PEM blocks, and nothing but certificates
// of it is passed on. The agent is the one who reads it, and has it in its
// image anyway.
package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host/tree"
)

// Bounds in bytes. Mozilla's list, which distributions ship, has some 220 KB.
const (
	maxFile   = 1 << 20
	maxImage  = 4 << 20
	blockType = "CERTIFICATE"
)

// imageLists are where distributions keep the one list of all authorities, by
// paths without links: Debian and Alpine, Fedora, older Alpine and Arch, SUSE.
var imageLists = []string{
	"etc/ssl/certs/ca-certificates.crt",
	"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"etc/ca-certificates/extracted/tls-ca-bundle.pem",
	"etc/ssl/cert.pem",
	"var/lib/ca-certificates/ca-bundle.pem",
}

// Company reads one file of root's with certificates of authorities, and gives
// them as PEM without anything else that stands in it.
func Company(path string) ([]byte, error) {
	raw, err := tree.ReadFile(path, maxFile, false)
	if err != nil {
		return nil, err
	}
	out, err := Authorities(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

// Authorities takes PEM whose every block is the certificate of an authority.
// Text between the blocks is dropped.
func Authorities(raw []byte) ([]byte, error) {
	var out bytes.Buffer
	n := 0
	rest := raw
	for {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			break
		}
		n++
		if strings.Contains(b.Type, "PRIVATE KEY") {
			return nil, fmt.Errorf("block %d is a private key, which nobody else may have: name a file that holds certificates alone", n)
		}
		if b.Type != blockType {
			return nil, fmt.Errorf("block %d is %q, not a certificate: name a file that holds certificates of authorities alone", n, b.Type)
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d cannot be read: %w", n, err)
		}
		if !c.BasicConstraintsValid || !c.IsCA {
			return nil, fmt.Errorf("certificate %d (%s) is not an authority's (CA:TRUE): name the authority that signed it", n, c.Subject)
		}
		write(&out, b.Bytes)
	}
	switch {
	case n == 0:
		return nil, errors.New("there is no PEM certificate in it (-----BEGIN CERTIFICATE-----); convert DER by `openssl x509 -inform der`")
	case bytes.Contains(rest, []byte("-----BEGIN")):
		return nil, fmt.Errorf("what follows certificate %d is not whole", n)
	}
	return out.Bytes(), nil
}

// Image gives the certificates of the list that an image itself has, nil when
// it has none. root is the image's root folder.
func Image(root string) ([]byte, error) {
	d, err := tree.Open(root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	for _, name := range imageLists {
		raw, err := d.ReadBeneath(name, maxImage)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) {
			continue // not there, or a link to one of the others
		}
		if err != nil {
			return nil, err
		}
		if list := certificates(raw); len(list) > 0 {
			return list, nil
		}
	}
	return nil, nil
}

// certificates keeps the certificate blocks of PEM, unread, and nothing else.
func certificates(raw []byte) []byte {
	var out bytes.Buffer
	for b, rest := pem.Decode(raw); b != nil; b, rest = pem.Decode(rest) {
		if b.Type == blockType {
			write(&out, b.Bytes)
		}
	}
	return out.Bytes()
}

func write(to *bytes.Buffer, der []byte) {
	_ = pem.Encode(to, &pem.Block{Type: blockType, Bytes: der}) // a buffer takes everything, and there are no headers
}
