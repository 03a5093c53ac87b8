package audit

import (
	"crypto/sha256"

	"golang.org/x/mod/sumdb/tlog"
)

// tree is the right edge of a Merkle tree: the roots of its perfect subtrees,
// the largest first. It is all that adding a leaf needs.
type tree struct {
	n     int64
	edges []tlog.Hash
}

func (t *tree) add(leaf []byte) {
	h := tlog.RecordHash(leaf)
	for n := t.n; n&1 == 1; n >>= 1 {
		last := len(t.edges) - 1
		h = tlog.NodeHash(t.edges[last], h)
		t.edges = t.edges[:last]
	}
	t.edges = append(t.edges, h)
	t.n++
}

// root is the hash of the tree (RFC 6962, 2.1).
func (t *tree) root() tlog.Hash {
	if t.n == 0 {
		return tlog.Hash(sha256.Sum256(nil))
	}
	last := len(t.edges) - 1
	h := t.edges[last]
	for i := last - 1; i >= 0; i-- {
		h = tlog.NodeHash(t.edges[i], h)
	}
	return h
}

func (t *tree) clone() tree { return tree{t.n, append([]tlog.Hash(nil), t.edges...)} }
