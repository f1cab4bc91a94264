package verify

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/bootimage"
)

// program is a PE32+ file with a signature of that text at its end.
// program is a PE32+ file without sections.
func program(code, signature string, checksum uint32) *io.SectionReader {
	b := make([]byte, 0x40+24+240)
	copy(b, "MZ")
	binary.LittleEndian.PutUint32(b[0x3c:], 0x40)
	copy(b[0x40:], "PE\x00\x00")
	binary.LittleEndian.PutUint16(b[0x40+20:], 240)
	optional := b[0x40+24:]
	binary.LittleEndian.PutUint16(optional, 0x20b)
	binary.LittleEndian.PutUint32(optional[64:], checksum)
	binary.LittleEndian.PutUint32(optional[108:], 16)
	b = append(b, code...)
	if signature != "" {
		b = append(b, make([]byte, -len(b)&7)...)
		binary.LittleEndian.PutUint32(b[0x40+24+112+4*8:], uint32(len(b)))
		binary.LittleEndian.PutUint32(b[0x40+24+112+4*8+4:], uint32(len(signature)))
		b = append(b, signature...)
	}
	return io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b)))
}

// TestProgramSum: a program signed at another time, or not at all, is the same program, and every other byte counts.
func TestProgramSum(t *testing.T) {
	t.Parallel()
	base := program("code", "signed on Monday", 1)
	type row struct {
		other *io.SectionReader
		same  bool
	}
	each(t, map[string]row{
		"the same":                 {program("code", "signed on Monday", 1), true},
		"signed again":             {program("code", "signed on Tuesday, at noon", 2), true},
		"not signed":               {program("code", "", 0), true},
		"not signed, other code":   {program("edoc", "", 0), false},
		"not signed, header":       {changed(program("code", "", 0), 0x40+24+16, 1), false},
		"other code":               {program("edoc", "signed on Monday", 1), false},
		"more code":                {program("code and more", "signed on Monday", 1), false},
		"more code than is signed": {program("code and more", "", 1), false},
	}, func(t *testing.T, tc row) {
		a, errA := programSum(base)
		b, errB := programSum(tc.other)
		if errA != nil || errB != nil || (a == b) != tc.same {
			t.Errorf("%s and %s are the same: %t, want %t (%v, %v)", a, b, a == b, tc.same, errA, errB)
		}
		if !tc.same {
			t.Attr("corruptions-caught", "1")
		}
	})
}

// changed is a program with another byte.
func changed(p *io.SectionReader, at int64, value byte) *io.SectionReader {
	b := make([]byte, p.Size())
	if _, err := p.ReadAt(b, 0); err != nil {
		panic(err)
	}
	b[at] = value
	return io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b)))
}

// TestNoProgram: a certificate table hides nothing that firmware loads.
func TestNoProgram(t *testing.T) {
	t.Parallel()
	const count, headers, optional = 0x40 + 6, 0x40 + 24 + 60, 0x40 + 24
	const table = optional + 112 + 4*8
	signed := program("code", "signed!!", 1)
	withSection := program(strings.Repeat("\x00", 40)+"evilcode", "signed!!", 1)
	section := int64(optional + 240)
	for name, tc := range map[string]struct {
		program *io.SectionReader
		want    string
	}{
		"empty":                        {io.NewSectionReader(strings.NewReader(""), 0, 0), "EOF"},
		"no PE header":                 {changed(signed, 0x40, 'X'), "its header is not where it should be"},
		"of another kind":              {changed(signed, optional, 0x07), "its optional header begins with"},
		"fewer directories":            {changed(signed, optional+108, 4), "no entry for a certificate table"},
		"a short header":               {changed(signed, 0x40+20, 100), "no entry for a certificate table"},
		"a table over the code":        {changed(signed, table, 0x48), "not behind its sections at the end"},
		"a table that is not aligned":  {changed(signed, table+4, 9), "not behind its sections at the end"},
		"a table beyond the end":       {changed(signed, table+5, 1), "not behind its sections at the end"},
		"a table before the end":       {program("code", "signed!! and more", 0), ""},
		"an empty table with a place":  {changed(signed, table+4, 0), "not behind its sections at the end"},
		"headers that reach the table": {changed(signed, headers+1, 9), "not behind its sections at the end"},
		"a section in the table":       {changed(changed(changed(withSection, count, 1), section+20, 0xff), section+16, 0xff), "not behind its sections at the end"},
		"a section before the table":   {changed(changed(changed(withSection, count, 1), section+16, 8), section+21, 1), ""},
		"sections that are not there":  {changed(signed, count, 200), "EOF"},
	} {
		_, err := programSum(tc.program)
		if got := message(err); tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// FuzzProgramSum: a program has a sum, or is refused as one of a foreign format.
func FuzzProgramSum(f *testing.F) {
	for _, p := range []*io.SectionReader{program("code", "", 1), program("code", "signed!!", 1)} {
		b := make([]byte, p.Size())
		if _, err := p.ReadAt(b, 0); err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p := io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b)))
		if _, err := programSum(p); err != nil && !errors.Is(err, bootimage.ErrFormat) {
			t.Errorf("%v", err)
		}
		_, _ = signatureOf(p)
	})
}
