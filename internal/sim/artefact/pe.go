package artefact

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"fmt"
)

type section struct {
	name    string
	content []byte
}

const (
	peAlignment    = 512
	peMemory       = 4096
	peOffset       = 0x80 // of the PE header, after the DOS header
	peHeaderBytes  = 4 + 20 + 240
	peSectionBytes = 40
)

// portableExecutable makes the PE32+ file of an EFI application. Its only code is a stub that does nothing.
func portableExecutable(arch string, sections []section) ([]byte, error) {
	machine := uint16(pe.IMAGE_FILE_MACHINE_AMD64)
	if arch == "arm64" {
		machine = pe.IMAGE_FILE_MACHINE_ARM64
	}
	sections = append([]section{{".text", []byte{0xc3}}}, sections...)
	headers := roundUp(peOffset+peHeaderBytes+len(sections)*peSectionBytes, peAlignment)
	file, memory := headers, roundUp(headers, peMemory)
	var table, content bytes.Buffer
	for _, s := range sections {
		h := pe.SectionHeader32{
			VirtualSize: uint32(len(s.content)), VirtualAddress: uint32(memory),
			SizeOfRawData: uint32(roundUp(len(s.content), peAlignment)), PointerToRawData: uint32(file),
			Characteristics: pe.IMAGE_SCN_CNT_INITIALIZED_DATA | pe.IMAGE_SCN_MEM_READ,
		}
		if copy(h.Name[:], s.name) < len(s.name) {
			return nil, fmt.Errorf("section %s: the name is too long", s.name)
		}
		if err := binary.Write(&table, binary.LittleEndian, h); err != nil {
			return nil, fmt.Errorf("section %s: %w", s.name, err)
		}
		content.Write(padded(bytes.Clone(s.content), peAlignment))
		file += int(h.SizeOfRawData)
		memory += roundUp(len(s.content), peMemory)
	}
	head := make([]byte, peOffset, file)
	copy(head, "MZ")
	binary.LittleEndian.PutUint32(head[0x3c:], peOffset)
	out := bytes.NewBuffer(head)
	out.WriteString("PE\x00\x00")
	err := binary.Write(out, binary.LittleEndian, struct {
		pe.FileHeader
		pe.OptionalHeader64
	}{
		pe.FileHeader{
			Machine: machine, NumberOfSections: uint16(len(sections)), SizeOfOptionalHeader: 240,
			Characteristics: pe.IMAGE_FILE_EXECUTABLE_IMAGE | pe.IMAGE_FILE_LARGE_ADDRESS_AWARE,
		},
		pe.OptionalHeader64{
			Magic: 0x20b, AddressOfEntryPoint: uint32(roundUp(headers, peMemory)), SectionAlignment: peMemory, FileAlignment: peAlignment,
			SizeOfImage: uint32(memory), SizeOfHeaders: uint32(headers), Subsystem: pe.IMAGE_SUBSYSTEM_EFI_APPLICATION, NumberOfRvaAndSizes: 16,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("write headers: %w", err)
	}
	out.Write(table.Bytes())
	return append(padded(out.Bytes(), peAlignment), content.Bytes()...), nil
}

// signed returns a program of portableExecutable with a certificate table and a checksum, as signing leaves it. Nothing in the
// lab verifies the signature.
func signed(program []byte) []byte {
	const optional, checksum, table, alignment = peOffset + 4 + 20, 64, 112 + 4*8, 8
	out := padded(bytes.Clone(program), alignment)
	certificate := binary.LittleEndian.AppendUint32(nil, 8+16)
	certificate = append(certificate, 0, 2, 2, 0) // WIN_CERT_REVISION_2_0, WIN_CERT_TYPE_PKCS_SIGNED_DATA
	certificate = append(certificate, "no real signature"[:16]...)
	binary.LittleEndian.PutUint32(out[optional+checksum:], 0xc0ffee)
	binary.LittleEndian.PutUint32(out[optional+table:], uint32(len(out)))
	binary.LittleEndian.PutUint32(out[optional+table+4:], uint32(len(certificate)))
	return append(out, certificate...)
}

func roundUp(n, multiple int) int { return (n + multiple - 1) / multiple * multiple }
