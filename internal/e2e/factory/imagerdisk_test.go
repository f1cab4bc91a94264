package factory

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestImagerDisk: the real imager makes the disk image of a schematic that no factory builds. It is verified, kept
// beside its installer, published, and booted; one with less than the lock says is refused.
func TestImagerDisk(t *testing.T) {
	s := newStage(t)
	s.setUp()
	s.core.push(t, "acme/frr:1.7.15", frr().index(t))
	s.replace("  default: schematics/default.yaml\n", "")
	s.replace("  storage: schematics/storage.yaml\n", "  bgp: {file: schematics/storage.yaml, extensions: ['"+s.core.addr+"/acme/frr:1.7.15']}\n")
	s.write("recast.yaml", strings.NewReplacer("schematic: default", "schematic: bgp", "schematic: storage", "schematic: bgp").Replace(s.read("recast.yaml")))
	imager := s.imager()
	s.replace("images:\n", "images:\n  imager: {command: ['"+imager+"', '{out}']}\n  boot: disk\n  disk: {storage: [local]}\n")

	s.tell("An imager that leaves an extension out of the disk image: refused by content")
	real := must(os.ReadFile(imager))(t)
	write(t, imager, []byte(strings.Replace(string(real), "exec ", `profile=$(cat)
case $profile in *'kind: image'*) profile=$(printf '%s\n' "$profile" | sed '\|/in/0.tar|d') ;; esac
printf '%s\n' "$profile" | `, 1)))
	s.typed(0, "lock")
	said, _ := s.typed(4, "publish", "--only", "build")
	s.refused++
	s.says(said, "bgp", "disk image: extension ")
	if e := s.lock().Schematics["bgp"]; e.Disk.SHA256 != "" || e.ISO.SHA256 == "" || e.Installer == "" {
		t.Fatalf("bgp is locked to %+v", e)
	}

	s.tell("The imager as it is: the disk image is verified, kept beside its installer, and published")
	write(t, imager, real)
	s.typed(0, "publish")
	e := s.lock().Schematics["bgp"]
	s.verified += 3
	cache := filepath.Join(s.dir, ".recast/cache/iso")
	s.isDisk(filepath.Join(cache, e.Disk.Name), e.Disk.DiskBytes)
	s.hasNothingToDo()

	s.tell("Another machine gets it from the mirror, without an imager")
	mustDo(t, errors.Join(os.RemoveAll(cache), os.Remove(imager)))
	said, _ = s.typed(0, "publish", "--only", "build")
	s.says(said, "fetching "+e.Disk.Name+" from "+s.mirror.addr)
	s.isDisk(filepath.Join(cache, e.Disk.Name), e.Disk.DiskBytes)

	s.tell("Roll: a simulated machine boots that very disk")
	said, _ = s.typed(0, "roll", "--yes", "--only", "wk2")
	s.says(said, "its new system disk is made from "+e.Disk.Name)
	s.typed(0, "drift", "--explain", "wk2")
	s.typed(0, "lab", "check", "--dir", ".")
	t.Attr("images-verified", fmt.Sprint(s.verified))
	t.Attr("images-refused", fmt.Sprint(s.refused))
}

// isDisk has QEMU and sfdisk, which know nothing of recast, find a disk of that size with Talos' partitions in a file.
func (s *stage) isDisk(file string, bytes int64) {
	s.t.Helper()
	dir := s.t.TempDir()
	run(s.t, dir, "", "qemu-img", "check", "-q", "-f", "qcow2", file)
	run(s.t, dir, "", "qemu-img", "convert", "-f", "qcow2", "-O", "raw", file, "disk.raw")
	run(s.t, dir, "", "sh", "-e", "-c", "sfdisk --json disk.raw >table.json")
	info := must(os.Stat(filepath.Join(dir, "disk.raw")))(s.t)
	var table struct {
		PartitionTable struct{ Partitions []struct{ Name string } }
	}
	mustDo(s.t, json.Unmarshal([]byte(s.readFrom(dir, "table.json")), &table))
	if got := fmt.Sprint(table.PartitionTable.Partitions); got != "[{EFI} {META}]" || info.Size() != bytes {
		s.t.Fatalf("%s: a disk of %d bytes with %s, the lock has %d", file, info.Size(), got, bytes)
	}
	s.notes("qemu-img and sfdisk find a disk of %d bytes with EFI and META in %s", bytes, filepath.Base(file))
}
