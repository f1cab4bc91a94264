package bootimage

import (
	"crypto/sha256"
	"debug/pe"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// buildSections are the sections of a UKI that may differ between builds: those that
// recast reads itself, later profiles, and their signature for a TPM.
var buildSections = map[string]bool{
	".osrel": true, ".cmdline": true, ".uname": true, ".linux": true, ".initrd": true, ".profile": true, ".pcrsig": true,
}

// stubSum identifies a UKI's program, independently of what it boots: systemd-stub,
// with the boot picture and the TPM's public key that imager adds. It excludes what
// imager rewrites in the headers (AssembleNative in internal/pkg/uki/internal/pe of
// Talos): sizes and the time.
func stubSum(r io.ReaderAt, file *pe.File, sizeBytes int64) (string, error) {
	header, ok := file.OptionalHeader.(*pe.OptionalHeader64)
	if !ok {
		return "", errors.New("no PE32+ program")
	}
	h := *header
	h.SizeOfCode, h.SizeOfInitializedData, h.SizeOfImage, h.SizeOfHeaders, h.CheckSum = 0, 0, 0, 0, 0
	h.DataDirectory[pe.IMAGE_DIRECTORY_ENTRY_SECURITY] = pe.DataDirectory{}
	sum := sha256.New()
	fmt.Fprintf(sum, "%d %d\n", file.Machine, file.Characteristics)
	if err := binary.Write(sum, binary.LittleEndian, h); err != nil {
		return "", err
	}
	own, end := true, int64(0)
	for _, s := range file.Sections {
		if int64(s.VirtualAddress) < end { // it would replace what is compared
			return "", fmt.Errorf("section %s overlaps another one in memory", s.Name)
		}
		end = int64(s.VirtualAddress) + int64(max(s.VirtualSize, s.Size))
		if buildSections[s.Name] {
			own = false
			continue
		}
		place := s.VirtualAddress
		if !own { // it follows sections of any length
			place = 0
		}
		fmt.Fprintf(sum, "%q %t %d %d %d %d\n", s.Name, own, place, s.VirtualSize, s.Size, s.Characteristics)
		if int64(s.Offset)+int64(s.Size) > sizeBytes {
			return "", fmt.Errorf("section %s ends after the file", s.Name)
		}
		if _, err := io.Copy(sum, io.NewSectionReader(r, int64(s.Offset), int64(s.Size))); err != nil {
			return "", fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
