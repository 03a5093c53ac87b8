// Package admintoken is the secret by which agents are made through front
// (POST /admin/agents): what is taken as one, how it is compared, and what
// happens to who guesses.
//
// A token is at least 64 random bytes, in hex or base64. Front, control and the
// warden know its SHA-256 only; from a value of so many bits nothing can be
// found by trying. Front checks it, so that guesses cost nobody else anything,
// and control checks it again and decides.
package admintoken

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// MinBytes is how many random bytes a token holds at least.
const MinBytes = 64

// MaxText bounds its text.
const MaxText = 4096

// Make is how an operator makes one, for messages.
const Make = "to mend: make one with: (umask 077; head -c 64 /dev/urandom | base64 -w 0 > FILE)"

// Hash is the SHA-256 of a token's text, in lower-case hex.
type Hash string

// ErrWeak is wrapped when a text is no token that could be trusted.
var ErrWeak = errors.New("it is no admin token")

// Read takes a token from the content of a file and gives its hash. Spaces and
// line ends around it are not part of it.
func Read(content []byte) (Hash, error) {
	text := strings.TrimSpace(string(content))
	if len(text) > MaxText {
		return "", fmt.Errorf("%w: it has more than %d characters; %s", ErrWeak, MaxText, Make)
	}
	raw, ok := decode(text)
	if !ok || strings.ContainsAny(text, "\r\n") { // base64 skips them
		return "", fmt.Errorf("%w: it is neither hex nor base64; %s", ErrWeak, Make)
	}
	if len(raw) < MinBytes {
		return "", fmt.Errorf("%w: it holds %d bytes, fewer than %d; %s", ErrWeak, len(raw), MinBytes, Make)
	}
	if n := distinct(raw); n < minDistinct || shrinks(raw) {
		return "", fmt.Errorf("%w: its bytes are not random (%d different ones in the first %d); %s", ErrWeak, n, MinBytes, Make)
	}
	return Of(text), nil
}

// decode tells hex from base64: hex first, since every hex text of a suitable
// length is base64 as well, of bytes that it only has half the bits for.
func decode(text string) ([]byte, bool) {
	if raw, err := hex.DecodeString(text); err == nil {
		return raw, true
	}
	for _, e := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
		if raw, err := e.Strict().DecodeString(text); err == nil {
			return raw, true
		}
	}
	return nil, false
}

// minDistinct is how many different bytes there are among 64. Of random ones
// there are 56 or 57; fewer than 40 happen once in more than 2^40 tokens.
const minDistinct = 40

func distinct(raw []byte) int {
	var seen [256]bool
	n := 0
	for _, b := range raw[:MinBytes] {
		if !seen[b] {
			seen[b] = true
			n++
		}
	}
	return n
}

// shrinks says whether a compressor finds a pattern, such as something
// repeated or counted; random bytes only grow. What it leaves is an upper bound
// of what is in there, so a token of 100 bytes may repeat some of them.
func shrinks(raw []byte) bool {
	deltas := make([]byte, len(raw))
	for i := range raw {
		deltas[i] = raw[i] - raw[max(i-1, 0)]
	}
	return packed(raw) < MinBytes || packed(deltas) < MinBytes
}

func packed(raw []byte) int {
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestCompression)
	if err != nil {
		return 0 // the level is constant
	}
	_, _ = w.Write(raw) // to memory
	_ = w.Close()
	return out.Len()
}

// Of hashes a token's text.
func Of(text string) Hash {
	sum := sha256.Sum256([]byte(text))
	return Hash(hex.EncodeToString(sum[:]))
}

// Bounds of guessing. Nobody guesses a token; who tries is stopped all the same,
// and the operator sees it in the records.
const (
	guesses   = 5 // in a row until the first lock
	firstLock = time.Minute
	longest   = time.Hour
)

// Guard compares tokens and stops guessing. Everybody comes from the host's
// loopback, so a lock holds for all: with the right token too. A right token
// that comes when there is no lock ends the count.
type Guard struct {
	now func() time.Time

	mu    sync.Mutex // guards what follows
	wrong int
	until time.Time
}

// NewGuard makes a guard; now is for tests, nil: time.Now.
func NewGuard(now func() time.Time) *Guard {
	if now == nil {
		now = time.Now
	}
	return &Guard{now: now}
}

// Check says at which place of known the text's hash stands; -1: nowhere. With
// wait above zero nothing was compared: it is locked for that long. The time
// that it takes depends on how many are known, and not on what was shown.
func (g *Guard) Check(known []Hash, text string) (at int, wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if wait = g.until.Sub(g.now()); wait > 0 {
		return -1, wait
	}
	at = -1
	shown := []byte(Of(text))
	for i, h := range known {
		if subtle.ConstantTimeCompare(shown, []byte(h)) == 1 {
			at = i
		}
	}
	if at >= 0 {
		g.wrong = 0
		return at, 0
	}
	if g.wrong++; g.wrong >= guesses {
		g.until = g.now().Add(min(firstLock<<min(g.wrong-guesses, 10), longest))
	}
	return -1, 0
}
