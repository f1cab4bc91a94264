package artefact

import (
	"fmt"
	"maps"
	"path"
	"slices"
)

// cpioArchive packs regular files, by path with or without a leading slash, like `cpio -H
// newc --reproducible -R +0:+0`: directories first, inode numbers from 1, no times.
func cpioArchive(files map[string][]byte) []byte {
	dirs := map[string]bool{}
	for name := range files {
		for d := path.Dir(relative(name)); d != "."; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	var b []byte
	inode := 0
	for _, d := range slices.Sorted(maps.Keys(dirs)) {
		inode++
		b = cpioEntry(b, d, 0o40755, inode, nil)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		inode++
		b = cpioEntry(b, relative(name), 0o100000|fileMode, inode, files[name])
	}
	b = cpioEntry(b, "TRAILER!!!", 0, 0, nil)
	return padded(b, cpioBlockBytes)
}

const cpioBlockBytes = 512

func relative(name string) string {
	if name[0] == '/' {
		return name[1:]
	}
	return name
}

func cpioEntry(b []byte, name string, mode, inode int, content []byte) []byte {
	links := 1
	b = fmt.Appendf(b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		inode, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	b = padded(append(append(b, name...), 0), 4)
	return padded(append(b, content...), 4)
}

// padded pads b with zero bytes.
func padded(b []byte, multiple int) []byte {
	return append(b, make([]byte, (multiple-len(b)%multiple)%multiple)...)
}
