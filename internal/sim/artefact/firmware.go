package artefact

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

const firmwareDir = "/usr/lib/firmware/"

// microcode are the files that imager concatenates for the kernel's early loader
// (earlyCPUUcode in internal/pkg/extensions/compress.go of Talos).
var microcode = []struct{ pattern, target string }{
	{firmwareDir + "intel-ucode/*", "/kernel/x86/microcode/GenuineIntel.bin"},
	{firmwareDir + "amd-ucode/microcode_amd*.bin", "/kernel/x86/microcode/AuthenticAMD.bin"},
}

// moveFirmware returns the extension without its firmware, which it moves to loose: the kernel
// requests firmware before it mounts extensions. A link moves as its target's content, and
// dangles once that has moved (handleFilesOp and appendBlob, ibid.).
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
			// The pattern is a valid constant.
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

// open reads the file at a path, following links.
func (e Extension) open(name string) ([]byte, error) {
	const tooMany = 40 // Linux' limit
	at := name
	for range tooMany {
		if content, ok := e.Files[at]; ok {
			return content, nil
		}
		target, ok := e.Links[at]
		if !ok {
			return nil, fmt.Errorf("%s leads to %s: no such file or directory", name, at)
		}
		if path.IsAbs(target) { // on imager's machine
			return nil, fmt.Errorf("%s leads to %s: no such file or directory", name, target)
		}
		at = path.Join(path.Dir(at), target)
	}
	return nil, fmt.Errorf("open %s: too many levels of symbolic links", name)
}
