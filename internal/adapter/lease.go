package adapter

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
)

// A lease is named by the message's id and a random nonce. It is looked up in
// the queue of the agent that shows it, so that it is worth nothing to another,
// and the nonce makes it worth nothing once the delivery was leased anew.
const leaseBytes = 16

func leaseToken(message, nonce int64) string {
	var b [leaseBytes]byte
	binary.BigEndian.PutUint64(b[:8], bits(message))
	binary.BigEndian.PutUint64(b[8:], bits(nonce))
	return hex.EncodeToString(b[:])
}

func parseLease(s string) (message, nonce int64, ok bool) {
	var b [leaseBytes]byte
	if len(s) != 2*leaseBytes {
		return 0, 0, false
	}
	if _, err := hex.Decode(b[:], []byte(s)); err != nil {
		return 0, 0, false
	}
	message, nonce = number(binary.BigEndian.Uint64(b[:8])), number(binary.BigEndian.Uint64(b[8:]))
	return message, nonce, message > 0 && nonce != 0
}

func newNonce() int64 {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails (crypto/rand)
		if n := number(binary.BigEndian.Uint64(b[:])); n != 0 {
			return n
		}
	}
}
