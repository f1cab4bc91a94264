package bootimage

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
)

// KernelRelease is the release (uname -r) recorded in a kernel; "" if there is none.
// An x86 kernel has it in its boot header (Documentation/arch/x86/boot.rst of Linux,
// fields header and kernel_version). The header of an arm64 kernel has no such
// field.
func KernelRelease(kernel io.ReaderAt) string {
	const magic, version, setup, longest = 0x202, 0x20e, 0x200, 256
	var header [version + 2 - magic]byte
	if _, err := kernel.ReadAt(header[:], magic); err != nil || !bytes.HasPrefix(header[:], []byte("HdrS")) {
		return ""
	}
	at := int64(binary.LittleEndian.Uint16(header[version-magic:]))
	if at == 0 {
		return ""
	}
	var text [longest]byte
	n, _ := kernel.ReadAt(text[:], setup+at) // a small kernel ends before
	line, _, found := bytes.Cut(text[:n], []byte{0})
	if !found {
		return ""
	}
	release, _, _ := strings.Cut(string(line), " ")
	return release
}
