package factory

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestDiskImage: the real factory's disk image of a schematic is verified; each of its
// corruptions is refused with its own words. QEMU and sfdisk make those that need the
// disk in the file.
func TestDiskImage(t *testing.T) {
	s := newStage(t)
	s.setUp()
	s.tell("Lock, and build: the installer with which the disk image is compared")
	s.typed(0, "lock")
	s.typed(0, "publish", "--only", "build")
	s.tell("The factory's disk image of schematic storage, and four corruptions of it")
	disk := filepath.Join(t.TempDir(), "disk.qcow2")
	s.notes("%s", s.runs("fetch", "recast.lock", "storage", s.front.url, disk))
	content := must(os.ReadFile(disk))(t)
	spoilt := []struct{ name, content, want string }{
		{"a byte in the UKI", flipped(t, content, random("kernel amd64", 256<<10)[100<<10:][:256]), "the disk image is of another build than the installer: kernel "},
		{"a sector less", string(content[:len(content)-512]), "damaged or of a foreign format: it is cut short: "},
		{"another partition", s.repacked(disk, `echo 'size=8M, name=STATE' | sfdisk --quiet --append disk.raw`), `partition 3, "STATE", is not one that Talos makes`},
		{"no backup of its table", s.repacked(disk, `truncate -s -512 disk.raw; truncate -s +512 disk.raw`), "backup of the partition table: it is missing"},
	}
	args := []string{"verify", "recast.lock", "storage", s.core.addr + "/siderolabs", disk}
	for i, c := range spoilt {
		name := filepath.Join(t.TempDir(), fmt.Sprintf("spoilt%d.qcow2", i))
		write(t, name, []byte(c.content))
		args = append(args, name)
	}
	found := strings.Split(strings.TrimSpace(s.runs(args...)), "\n")
	said := map[string]string{}
	for _, line := range found {
		name, what, _ := strings.Cut(line, ": ")
		said[name] = what
	}
	if !strings.HasPrefix(said[disk], "as locked: a disk of ") {
		t.Fatalf("the factory's disk image: %s", said[disk])
	}
	s.notes("%s: %s", filepath.Base(disk), said[disk])
	for i, c := range spoilt {
		got := said[args[len(args)-len(spoilt)+i]]
		s.notes("%s: %s", c.name, got)
		if !strings.HasPrefix(got, "refused: ") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %q", c.name, got, c.want)
		}
	}
	s.verifiesSecureDisk()
	t.Attr("images-verified", "8") // two disk images, the installers and boot ISOs of three schematics
	t.Attr("images-refused", strconv.Itoa(len(spoilt)+s.refused))
}

// verifiesSecureDisk has a disk image for Secure Boot verified: it is signed, and enrols
// the locked certificate. One by another key is refused.
func (s *stage) verifiesSecureDisk() {
	s.tell("A disk image for Secure Boot enrols the locked certificate, and no other")
	s.toSecureDirectory()
	s.typed(0, "lock")
	s.typed(0, "publish", "--only", "build")
	disk := filepath.Join(s.t.TempDir(), "secure.qcow2")
	s.notes("%s", s.runs("fetch", "recast.lock", "default", s.front.url, disk))
	s.server.keys += "-2"
	secureBootKeys(s.t, s.server.keys)
	fresh := s.server.start(s.t)
	other := filepath.Join(s.t.TempDir(), "other.qcow2")
	s.runs("fetch", "recast.lock", "default", fresh.url, other)
	found := strings.Split(s.runs("verify", "recast.lock", "default", s.core.addr+"/siderolabs", disk, other), "\n")
	for _, line := range found {
		s.notes("%s", line)
	}
	if len(found) < 2 || !strings.HasPrefix(found[0], disk+": as locked: a disk of ") {
		s.t.Fatalf("the factory's disk image for Secure Boot: %q", found)
	}
	s.says(strings.Join(found[1:], "\n"), other+": refused: ", "disk image: it enrols other certificates for Secure Boot than the locked one, ",
		"disk image: its UKI is not signed by the certificate that is locked for Secure Boot, ")
	s.refused++
}

// runs runs the program that fetches and verifies disk images, in the lab's directory.
func (s *stage) runs(args ...string) string {
	s.t.Helper()
	c := exec.CommandContext(s.t.Context(), absolute(s.t, *diskBinary), args...)
	c.Dir = s.dir
	var out, told bytes.Buffer
	c.Stdout, c.Stderr = &out, &told
	if err := c.Run(); err != nil {
		s.t.Fatalf("disk %s: %v\n%s%s", args[0], err, &out, &told)
	}
	return strings.TrimSpace(out.String())
}

// flipped changes a byte of a piece that the file has.
func flipped(t *testing.T, content, piece []byte) string {
	t.Helper()
	at := bytes.Index(content, piece)
	if at < 0 {
		t.Fatal("the kernel is not in the image as it was built")
	}
	b := bytes.Clone(content)
	b[at] ^= 1
	return string(b)
}

// repacked is a disk image after a change of the disk in it, disk.raw.
func (s *stage) repacked(image, change string) string {
	s.t.Helper()
	dir := s.t.TempDir()
	run(s.t, dir, "", "qemu-img", "convert", "-f", "qcow2", "-O", "raw", image, "disk.raw")
	run(s.t, dir, "", "sh", "-e", "-c", change)
	run(s.t, dir, "", "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-o", "cluster_size=8k", "disk.raw", "disk.qcow2")
	return string(must(os.ReadFile(filepath.Join(dir, "disk.qcow2")))(s.t))
}
