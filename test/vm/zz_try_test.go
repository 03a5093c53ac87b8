//go:build vm

package vm

import "testing"

func TestTryAppArmor(t *testing.T) {
	h := arrive(t, "trixie", []string{"test/vm/inside"})
	h.test(t, "test/vm/inside", "", "-test.run=AppArmor")
}
