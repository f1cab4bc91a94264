package verify

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"
)

// program is a PE32+ file with a signature of that text at its end.
func program(code, signature string, checksum uint32) *io.SectionReader {
	b := make([]byte, 0x40+24+240)
	copy(b, "MZ")
	binary.LittleEndian.PutUint32(b[0x3c:], 0x40)
	copy(b[0x40:], "PE\x00\x00")
	optional := b[0x40+24:]
	binary.LittleEndian.PutUint16(optional, 0x20b)
	binary.LittleEndian.PutUint32(optional[64:], checksum)
	b = append(b, code...)
	if signature != "" {
		binary.LittleEndian.PutUint32(b[0x40+24+112+4*8:], uint32(len(b)))
		binary.LittleEndian.PutUint32(b[0x40+24+112+4*8+4:], uint32(len(signature)))
		b = append(b, signature...)
	}
	return io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b)))
}

// TestProgramSum: a kernel signed at another time is the same kernel; without Secure
// Boot every byte counts.
func TestProgramSum(t *testing.T) {
	t.Parallel()
	base := program("code", "signed on Monday", 1)
	for name, tc := range map[string]struct {
		other               *io.SectionReader
		same, sameForSigned bool
	}{
		"the same":     {program("code", "signed on Monday", 1), true, true},
		"signed again": {program("code", "signed on Tuesday", 2), false, true},
		"other code":   {program("edoc", "signed on Monday", 1), false, false},
		"more code":    {program("code and more", "signed on Monday", 1), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, secureBoot := range []bool{false, true} {
				a, errA := programSum(base, secureBoot)
				b, errB := programSum(tc.other, secureBoot)
				want := tc.same
				if secureBoot {
					want = tc.sameForSigned
				}
				if errA != nil || errB != nil || (a == b) != want {
					t.Errorf("Secure Boot %t: %s %v, %s %v", secureBoot, a, errA, b, errB)
				}
			}
		})
	}
}

func TestProgramSumRefuses(t *testing.T) {
	t.Parallel()
	for name, kernel := range map[string][]byte{
		"nothing":       nil,
		"no PE":         make([]byte, 4096),
		"cut off":       []byte("MZ"),
		"points beyond": append(append([]byte("MZ"), make([]byte, 0x3a)...), 0xff, 0xff, 0xff, 0xff),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if sum, err := programSum(io.NewSectionReader(bytes.NewReader(kernel), 0, int64(len(kernel))), true); err == nil {
				t.Errorf("no error, but %s", sum)
			}
		})
	}
}
