package trim

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// resident reads how much of the parts is mapped, in KiB (proc_pid_smaps(5)).
func resident(t *testing.T, parts []part) (kib int) {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	ours := false
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if from, _, ok := strings.Cut(f[0], "-"); ok && !strings.HasSuffix(f[0], ":") {
			start, err := strconv.ParseUint(from, 16, 64)
			if err != nil {
				t.Fatalf("smaps: %q", line)
			}
			ours = false
			for _, p := range parts {
				ours = ours || uintptr(start) >= p.start && uintptr(start) < p.start+p.size
			}
		}
		if ours && f[0] == "Rss:" {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatalf("smaps: %q", line)
			}
			kib += n
		}
	}
	return kib
}

func TestWhatAProgramDoesNotUseIsNotResident(t *testing.T) {
	parts, err := readOnlyParts()
	if err != nil {
		t.Fatal(err)
	}
	if len(parts) < 2 {
		t.Fatalf("a Go program has code and constants apart: %v", parts)
	}
	all, sum := 0, byte(0)
	for _, p := range parts {
		mem := unsafe.Slice((*byte)(unsafe.Add(nil, p.start)), p.size)
		for i := 0; i < len(mem); i += 4096 {
			sum += mem[i]
		}
		all += int(p.size) >> 10
	}
	before := resident(t, parts)
	if before < all*9/10 {
		t.Fatalf("%d KiB of %d are resident after all were read (%d)", before, all, sum)
	}
	if err := program(); err != nil {
		t.Fatal(err)
	}
	if after := resident(t, parts); after > before/2 {
		t.Errorf("%d KiB of %d are still resident", after, before)
	}
	// Everything is there again when it is used.
	again := byte(0)
	for _, p := range parts {
		mem := unsafe.Slice((*byte)(unsafe.Add(nil, p.start)), p.size)
		for i := 0; i < len(mem); i += 4096 {
			again += mem[i]
		}
	}
	if again != sum {
		t.Error("the program reads differently now")
	}
}

func TestPartsAreReadOnlySegmentsOfTheFile(t *testing.T) {
	const page = 0x1000
	self := header{kind: ptPhdr, vaddr: 0x400040}
	for _, c := range []struct {
		name    string
		headers []header
		at      uintptr
		want    []part
	}{
		{"code and constants, not data", []header{self, {kind: ptLoad, flags: 5, vaddr: 0x400000, fileSize: 0x1001, memSize: 0x1001}, {kind: ptLoad, flags: 4, vaddr: 0x402000, fileSize: 0x10, memSize: 0x10}, {kind: ptLoad, flags: 6, vaddr: 0x403000, fileSize: 0x10, memSize: 0x10}}, 0x400040, []part{{0x400000, 0x2000}, {0x402000, 0x1000}}},
		{"moved by the kernel", []header{{kind: ptPhdr, vaddr: 0x40}, {kind: ptLoad, flags: 5, vaddr: 0, fileSize: 0x800, memSize: 0x800}}, 0x7f0000000040, []part{{0x7f0000000000, 0x1000}}},
		{"a segment with memory of its own at its end", []header{self, {kind: ptLoad, flags: 4, vaddr: 0x400000, fileSize: 0x10, memSize: 0x2000}}, 0x400040, nil},
		{"no loaded segment", []header{self, {kind: 4, flags: 4, vaddr: 0x400f78, fileSize: 0x64, memSize: 0x64}}, 0x400040, nil},
	} {
		got, err := partsOf(c.headers, c.at, page)
		if err != nil || len(got) != len(c.want) {
			t.Errorf("%s: %#v, %v; want %#v", c.name, got, err, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: part %d is %#v, want %#v", c.name, i, got[i], c.want[i])
			}
		}
	}
	if got, err := partsOf([]header{{kind: ptLoad, flags: 5, vaddr: 0x400000, fileSize: 1, memSize: 1}}, 0x400040, page); err == nil {
		t.Errorf("a program that does not say where it lies: %v", got)
	}
}

func FuzzPartsOf(f *testing.F) {
	f.Add(uint64(0x400000), uint64(0x1000), uint64(0x1000), uint32(5))
	f.Fuzz(func(t *testing.T, vaddr, size, mem uint64, flags uint32) {
		parts, err := partsOf([]header{{kind: ptPhdr, vaddr: 0x40}, {kind: ptLoad, flags: flags, vaddr: vaddr, fileSize: size, memSize: mem}}, 0x40, 4096)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range parts {
			if flags&pfWrite != 0 || p.start%4096 != 0 || p.size%4096 != 0 {
				t.Errorf("%#v of flags %d", p, flags)
			}
		}
	})
}
