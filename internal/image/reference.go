package image

import (
	"fmt"
	"net"
	"regexp"
	"strings"
)

// referenceRE is REGISTRY/REPOSITORY@sha256:DIGEST; what a registry's name may
// be is judged by the one that asks it.
var referenceRE = regexp.MustCompile(`^[A-Za-z0-9.:\[\]-]+(?:/[a-z0-9._-]+)+@sha256:([0-9a-f]{64})$`)

// ParseReference gives the hexadecimal digest of REGISTRY/REPOSITORY@sha256:DIGEST.
// Tags are refused: whoever can move one could change what runs here.
func ParseReference(text string) (hex string, err error) {
	m := referenceRE.FindStringSubmatch(text)
	if len(text) > 512 || m == nil {
		return "", fmt.Errorf("%.200q is not REGISTRY/REPOSITORY@sha256:DIGEST (a registry shows the digest of a tag: skopeo inspect docker://…)", text)
	}
	return m[1], nil
}

// PullRequest travels to the process that pulls, as JSON.
type PullRequest struct {
	Reference string `json:"reference"`
	Bytes     int64  `json:"bytes"` // at most, of all layers together, decompressed
}

// RegistryOf is where a reference's registry listens, as host:port. Plain HTTP
// is spoken with loopback and private addresses only, by the client's rules.
func RegistryOf(reference string) string {
	host, _, _ := strings.Cut(reference, "/")
	if _, port, err := net.SplitHostPort(host); err == nil && port != "" {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), "443")
}
