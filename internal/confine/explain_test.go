package confine

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"

	"bulkhead/internal/engine"
)

// What is explained must be what the compiled filter answers.
func TestExplanationsAgreeWithTheFilter(t *testing.T) {
	for _, role := range []engine.Role{engine.RoleRuntime, engine.RoleGateway, engine.RoleDialer} {
		f, err := ForRole(role)
		if err != nil {
			t.Fatal(err)
		}
		program := make([]bpf.Instruction, 0, f.Len())
		for _, r := range f.Raw() {
			program = append(program, r.Disassemble())
		}
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for _, name := range CallNames() {
			v, ok := ExplainCall(role, name)
			if !ok || v.Rule == "" {
				t.Fatalf("%s is not explained", name)
			}
			// The VM reads big-endian, as packets are; the kernel reads these natively.
			data := make([]byte, 64)
			binary.BigEndian.PutUint32(data, native().nr(name))
			binary.BigEndian.PutUint32(data[offArch:], native().audit)
			got, err := vm.Run(data)
			if err != nil {
				t.Fatal(err)
			}
			allowed := uint32(got) == retAllow // #nosec G115 -- 32 bits
			switch {
			case v.Depends:
				seen["depends"]++
			case v.Allowed != allowed:
				t.Errorf("%s: %s is explained as allowed=%t, the filter answers %#x", role, name, v.Allowed, got)
			case allowed:
				seen["allowed"]++
			default:
				seen["denied"]++
			}
		}
		if seen["allowed"] < 100 || seen["denied"] < 30 || seen["depends"] < 3 {
			t.Errorf("%s: %v", role, seen)
		}
	}
	if _, ok := ExplainCall(engine.RoleRuntime, "no_such_call"); ok {
		t.Error("a call that does not exist is explained")
	}
}
