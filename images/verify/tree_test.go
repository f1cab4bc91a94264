package verify

import (
	"io/fs"
	"testing"

	"github.com/recast-sh/recast/internal/bootimage"
)

// TestHardLinks: imager makes an empty file of a hard link in an extension image
// (Untar in pkg/archiver of siderolabs/talos v1.14.1 takes it for a file), and of
// nothing else.
func TestHardLinks(t *testing.T) {
	t.Parallel()
	file, empty, other := content("x"), content(""), content("y")
	hard := file
	hard.HardLink, hard.LinkMode = true, 0o755
	as := func(f bootimage.File, mode fs.FileMode) bootimage.File { f.Mode = mode; return f }
	type row struct {
		want, got bootimage.File
		same      bool
	}
	each(t, map[string]row{
		"left empty":      {hard, as(empty, 0o755), true},
		"with its mode":   {hard, as(empty, 0o644), false}, // the file's, not the link's own
		"with another":    {hard, as(empty, 0o755|fs.ModeSetuid), false},
		"followed, mode":  {hard, as(file, 0o755), false},
		"followed":        {hard, file, true},
		"something else":  {hard, other, false},
		"a file, emptied": {file, empty, false},
	}, func(t *testing.T, tc row) {
		if why := sameFile(tc.want, tc.got); (why == "") != tc.same {
			t.Errorf("why = %q", why)
		}
	})
	files := bootimage.Tree{firmwareDir + "/intel-ucode/06-01-01": file, firmwareDir + "/intel-ucode/06-01-02": hard}
	if _, _, microcode, err := split(files); err != nil || len(microcode[intelMicrocode]) != 1 {
		t.Errorf("microcode = %v, %v", microcode, err)
	}
}
