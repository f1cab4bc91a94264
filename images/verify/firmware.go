package verify

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/bootimage"
)

// firmwareDir is what imager moves out of extensions, because the kernel looks for
// firmware before any extension is mounted: see Compress in internal/pkg/extensions
// of siderolabs/talos.
const firmwareDir = "/usr/lib/firmware"

const (
	intelMicrocode = "/kernel/x86/microcode/GenuineIntel.bin"
	amdMicrocode   = "/kernel/x86/microcode/AuthenticAMD.bin"
)

// microcodeBlob is the blob, read early by the kernel, to which imager appends a
// file; "" if the file is not CPU microcode: see earlyCPUUcode, ibid.
func microcodeBlob(name string) string {
	dir, base := path.Split(name)
	switch dir {
	case firmwareDir + "/intel-ucode/":
		return intelMicrocode
	case firmwareDir + "/amd-ucode/":
		if strings.HasPrefix(base, "microcode_amd") && strings.HasSuffix(base, ".bin") {
			return amdMicrocode
		}
	}
	return ""
}

// isFirmware reports whether imager moves a file out of its extension.
func isFirmware(name string) bool {
	return name == firmwareDir || strings.HasPrefix(name, firmwareDir+"/")
}

// split divides an extension's files as imager does: what stays in it, what moves
// into the initramfs beside it, and which files become part of a microcode blob.
func split(files bootimage.Tree) (kept, moved bootimage.Tree, microcode map[string][]string, err error) {
	kept, moved, microcode = bootimage.Tree{}, bootimage.Tree{}, map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		if !isFirmware(name) {
			kept[name] = f
			continue
		}
		if blob := microcodeBlob(name); blob != "" {
			if f.Mode.Type() != 0 {
				return nil, nil, nil, fmt.Errorf("%s is CPU microcode, but a %s", name, kindOf(f))
			}
			if !f.HardLink { // imager finds it empty
				microcode[blob] = append(microcode[blob], name)
			}
			continue
		}
		if f.Mode.Type() == fs.ModeSymlink { // imager copies what a link points to
			if f, err = follow(files, name); err != nil {
				return nil, nil, nil, err
			}
		}
		moved[name] = f
	}
	return kept, moved, microcode, nil
}

// follow returns the regular file that a link within an extension leads to.
func follow(files bootimage.Tree, name string) (bootimage.File, error) {
	const most = 8
	at := name
	for range most {
		f, ok := files[at]
		switch {
		case !ok:
			return f, fmt.Errorf("%s leads to %s, which is not a file of the extension", name, at)
		case f.Mode.Type() != fs.ModeSymlink:
			return f, nil
		case path.IsAbs(f.Link): // imager would follow it in its own file system
			return f, fmt.Errorf("%s leads out of the extension, to %s", name, f.Link)
		}
		at = path.Join(path.Dir(at), f.Link)
	}
	return bootimage.File{}, fmt.Errorf("%s leads through more than %d links", name, most)
}

// looseFiles returns what imager puts beside the extensions, in their order: a later
// file replaces an earlier one, and microcode is appended.
func looseFiles(order []*lockedExtension) (bootimage.Tree, error) {
	loose := bootimage.Tree{}
	blobs := map[string][]string{} // files that hold the parts of each
	for _, x := range order {
		maps.Copy(loose, x.moved)
		for blob, parts := range x.microcode {
			blobs[blob] = append(blobs[blob], parts...)
		}
	}
	for blob, parts := range blobs {
		f, err := joined(parts)
		if err != nil {
			return nil, fmt.Errorf("put the CPU microcode together: %w", err)
		}
		loose[blob] = f
	}
	return loose, nil
}

// joined describes the concatenation of these files.
func joined(files []string) (bootimage.File, error) {
	sum := sha256.New()
	var total int64
	for _, name := range files {
		n, err := copyFile(sum, name)
		if err != nil {
			return bootimage.File{}, err
		}
		total += n
	}
	return bootimage.File{SizeBytes: total, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

func copyFile(w io.Writer, name string) (int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return io.Copy(w, f)
}

// keepMicrocode reads an extension image again and keeps its microcode in files of
// dir: the hash covers all parts together, so the parts' own hashes do not help. It
// returns the files of each blob, sorted by name.
func (v *Verifier) keepMicrocode(ctx context.Context, ref, arch, dir string, microcode map[string][]string) (map[string][]string, error) {
	kept := map[string]string{} // by the path in the image
	parts := map[string][]string{}
	for blob, names := range microcode {
		for _, name := range names {
			file := filepath.Join(dir, strconv.Itoa(len(kept)))
			kept["rootfs"+name] = file
			parts[blob] = append(parts[blob], file)
		}
	}
	image, err := v.images.Extract(ctx, ref, arch)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	err = eachFile(image, func(name string, r io.Reader) error {
		if to, wanted := kept[name]; wanted {
			return writeFile(to, r)
		}
		return nil
	})
	return parts, err
}

// eachFile calls do for every regular file of a tar, by its path without a leading
// slash, and reads the stream to its end, so that the whole of it is checked.
func eachFile(stream io.Reader, do func(name string, r io.Reader) error) error {
	return eachEntry(stream, func(kind byte, name string, r io.Reader) error {
		if kind != tar.TypeReg {
			return nil
		}
		return do(name, r)
	})
}

// eachEntry is eachFile for all entries, including directories and links.
func eachEntry(stream io.Reader, do func(kind byte, name string, r io.Reader) error) error {
	t := tar.NewReader(stream)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, stream)
			return err
		}
		if err != nil {
			return err
		}
		if err := do(h.Typeflag, strings.TrimPrefix(path.Clean(h.Name), "/"), t); err != nil {
			return err
		}
	}
}

func writeFile(name string, r io.Reader) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
