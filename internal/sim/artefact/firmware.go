package artefact

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

const firmwareDir = "/usr/lib/firmware/"

// microcode are the files that imager joins for the kernel's early loader
// (earlyCPUUcode in internal/pkg/extensions/compress.go of Talos).
var microcode = []struct{ pattern, target string }{
	{firmwareDir + "intel-ucode/*", "/kernel/x86/microcode/GenuineIntel.bin"},
	{firmwareDir + "amd-ucode/microcode_amd*.bin", "/kernel/x86/microcode/AuthenticAMD.bin"},
}

// moveFirmware returns the extension without its firmware, which it puts into loose: the kernel
// asks for firmware before it mounts an extension. A link moves as what it leads to, and
// leads nowhere once that has moved (handleFilesOp and appendBlob, ibid.).
func moveFirmware(e Extension, loose map[string][]byte) (Extension, error) {
	e.Files, e.Links = maps.Clone(e.Files), maps.Clone(e.Links)
	move := func(name string) ([]byte, error) {
		content, err := e.open(name)
		delete(e.Files, name)
		delete(e.Links, name)
		return content, err
	}
	for _, m := range microcode {
		for _, name := range e.paths() {
			// The pattern is a constant that is well formed.
			if ok, _ := path.Match(m.pattern, name); !ok {
				continue
			}
			content, err := move(name)
			if err != nil {
				return e, err
			}
			loose[m.target] = slices.Concat(loose[m.target], content)
		}
	}
	for _, name := range e.paths() {
		if !strings.HasPrefix(name, firmwareDir) {
			continue
		}
		content, err := move(name)
		if err != nil {
			return e, err
		}
		loose[name] = content
	}
	return e, nil
}

// paths are those of all files and links, in the order of a walk.
func (e Extension) paths() []string {
	names := slices.Concat(slices.Collect(maps.Keys(e.Files)), slices.Collect(maps.Keys(e.Links)))
	slices.SortFunc(names, func(a, b string) int {
		return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
	})
	return names
}

// open reads the file that a path is, or leads to.
func (e Extension) open(name string) ([]byte, error) {
	const tooMany = 40 // of Linux
	at := name
	for range tooMany {
		if content, ok := e.Files[at]; ok {
			return content, nil
		}
		target, ok := e.Links[at]
		if !ok {
			return nil, fmt.Errorf("%s leads to %s: no such file or directory", name, at)
		}
		if path.IsAbs(target) { // on the machine that imager runs on
			return nil, fmt.Errorf("%s leads to %s: no such file or directory", name, target)
		}
		at = path.Join(path.Dir(at), target)
	}
	return nil, fmt.Errorf("open %s: too many levels of symbolic links", name)
}
