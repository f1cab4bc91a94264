package factory

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"debug/pe"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.yaml.in/yaml/v4"
)

var architectures = []string{"amd64", "arm64"}

// entry is a file of a layer; a link if link is set, a directory without link and content.
type entry struct {
	name    string
	mode    fs.FileMode
	content []byte
	link    string
}

func directory(name string) entry { return entry{name: name + "/", mode: 0o755} }

func packed(t *testing.T, entries ...entry) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: int64(e.mode.Perm()), Size: int64(len(e.content)), Typeflag: tar.TypeReg}
		switch {
		case e.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		case e.name[len(e.name)-1] == '/':
			h.Typeflag = tar.TypeDir
		}
		mustDo(t, w.WriteHeader(h))
		must(w.Write(e.content))(t)
	}
	mustDo(t, w.Close())
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	return must(tarball.LayerFromOpener(opener, tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithMediaType(types.OCILayer)))(t)
}

// image makes an OCI image of one platform.
func image(t *testing.T, arch string, config v1.Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	img := must(mutate.ConfigFile(empty.Image, &v1.ConfigFile{Architecture: arch, OS: "linux", Config: config, RootFS: v1.RootFS{Type: "layers"}}))(t)
	return must(mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON), layers...))(t)
}

func index(one func(arch string) v1.Image) v1.ImageIndex {
	idx := v1.ImageIndex(empty.Index)
	for _, arch := range architectures {
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{
			Add: one(arch), Descriptor: v1.Descriptor{Platform: &v1.Platform{Architecture: arch, OS: "linux"}},
		})
	}
	return idx
}

// TestDiskImage: the real factory's disk image of a schematic is verified; each of its corruptions is refused with its
// own words. QEMU and sfdisk make those that need the disk in the file.
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

func (s *stage) repacked(image, change string) string {
	s.t.Helper()
	dir := s.t.TempDir()
	run(s.t, dir, "", "qemu-img", "convert", "-f", "qcow2", "-O", "raw", image, "disk.raw")
	run(s.t, dir, "", "sh", "-e", "-c", change)
	run(s.t, dir, "", "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-o", "cluster_size=8k", "disk.raw", "disk.qcow2")
	return string(must(os.ReadFile(filepath.Join(dir, "disk.qcow2")))(s.t))
}

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

// The programs of an installer that UEFI starts.
const (
	bootLoader    = "systemd-boot.efi"
	unifiedKernel = "vmlinuz.efi"
)

// signsInstallers signs boot loader and UKI of an ordinary installer, as Image Factories with keys for Secure Boot do
// since siderolabs/image-factory#538; that of this test, the newest that can be built of its module, does not. The boot
// ISO stays as it is.
func (s *stage) signsInstallers() {
	s.tell("An ordinary installer whose boot loader and UKI are signed, as newer factories sign them: the same programs")
	for _, program := range []struct{ name, called string }{
		{bootLoader, "systemd-boot"},
		{unifiedKernel, "systemd-stub in its UKI"},
	} {
		s.notes("the code of its %s is changed before it is signed", program.called)
		s.getsSigned(program.name)
		said, _ := s.typed(4, "publish", "--only", "build")
		s.refused++
		s.says(said, "boot ISO: another boot loader than the installer's: "+program.called)
		if e := s.lock().Schematics["storage"]; e.ISO.SHA256 != "" {
			s.t.Fatalf("what was refused is in the lock: %+v", e)
		}
	}
	s.notes("nothing is changed before it is signed")
	signed := s.getsSigned("")
	s.typed(0, "publish", "--only", "build")
	s.verified += 2
	installer := s.lock().Schematics["storage"].Installer
	if !strings.HasSuffix(installer, "@"+signed) {
		s.t.Fatalf("the lock has installer %s, the signed one is %s", installer, signed)
	}
	s.holds(installer, "2")
	s.typed(0, "publish")
	s.mirrored()
}

// getsSigned has the factory build the installer of another label, and signs it. The code of one of its programs may be
// changed before.
func (s *stage) getsSigned(changed string) (digest string) {
	s.t.Helper()
	s.typed(0, "lock", "--rebuild", "storage")
	e := s.lock().Schematics["storage"]
	at := "nocloud-installer/" + e.SchematicID + ":" + talosVersion
	s.front.registers(s.t, e.Schematic)
	signed := s.server.signed(s.t, pulled(s.t, s.front.addr+"/"+at), changed)
	s.server.publishes(s.t, at, signed)
	return digestOf(s.t, signed)
}

func (f *front) registers(t *testing.T, schematic string) {
	t.Helper()
	r := must(http.Post(f.url+"/schematics", "application/yaml", strings.NewReader(schematic)))(t)
	defer r.Body.Close()
	if r.StatusCode != http.StatusCreated {
		t.Fatalf("the factory answers %s", r.Status)
	}
}

func pulled(t *testing.T, ref string) v1.ImageIndex {
	t.Helper()
	r := must(name.ParseReference(ref))(t)
	return must(remote.Index(r, remote.WithContext(t.Context())))(t)
}

// signed is an installer whose programs are signed with the factory's keys for Secure Boot.
func (f *factoryServer) signed(t *testing.T, installer v1.ImageIndex, changed string) v1.ImageIndex {
	t.Helper()
	manifest := must(installer.IndexManifest())(t)
	return index(func(arch string) v1.Image {
		for _, m := range manifest.Manifests {
			if m.Platform != nil && m.Platform.Architecture == arch {
				img := must(installer.Image(m.Digest))(t)
				return f.signedImage(t, img, arch, changed)
			}
		}
		t.Fatalf("the installer has no image for %s: %+v", arch, manifest.Manifests)
		return nil
	})
}

func (f *factoryServer) signedImage(t *testing.T, img v1.Image, arch, changed string) v1.Image {
	t.Helper()
	config, errConfig := img.ConfigFile()
	layers, errLayers := img.Layers()
	mustDo(t, errors.Join(errConfig, errLayers))
	last := len(layers) - 1
	r := must(layers[last].Uncompressed())(t)
	defer r.Close()
	var entries []entry
	programs := 0
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		mustDo(t, err)
		content := must(io.ReadAll(archive))(t)
		if program := path.Base(h.Name); program == bootLoader || program == unifiedKernel {
			if program == changed {
				changeCode(t, content)
			}
			content = f.sign(t, content)
			programs++
		}
		entries = append(entries, entry{name: h.Name, mode: h.FileInfo().Mode(), content: content})
	}
	if programs != 2 {
		t.Fatalf("the last layer of an installer has %d programs that are signed: %+v", programs, entries)
	}
	return image(t, arch, config.Config, append(layers[:last:last], packed(t, entries...))...)
}

func changeCode(t *testing.T, program []byte) {
	t.Helper()
	f := must(pe.NewFile(bytes.NewReader(program)))(t)
	program[f.Section(".text").Offset] ^= 0xff
}

// sign signs a UEFI program with the factory's key for Secure Boot.
func (f *factoryServer) sign(t *testing.T, program []byte) []byte {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "plain.efi"), program)
	certificate := filepath.Join(f.keys, "signing.crt")
	run(t, dir, "", "osslsigncode", "sign", "-h", "sha256", "-certs", certificate, "-key", filepath.Join(f.keys, "signing.key"), "-in", "plain.efi", "-out", "signed.efi")
	run(t, dir, "", "osslsigncode", "verify", "-CAfile", certificate, "-in", "signed.efi")
	b := must(os.ReadFile(filepath.Join(dir, "signed.efi")))(t)
	if n := len(program); len(b) <= n || bytes.Equal(b[:n], program) {
		t.Fatal("osslsigncode left the header as it was: nothing is shown by that")
	}
	return b
}

// publishes puts an installer into the factory's own registry, signed by the factory's key for images, so that the
// factory serves it as built.
func (f *factoryServer) publishes(t *testing.T, path string, installer v1.ImageIndex) {
	t.Helper()
	f.own.push(t, "factory/"+path, installer)
	digest := digestOf(t, installer)
	repository := f.own.tag(t, "factory/"+path).Repository
	payload, err := json.Marshal(map[string]any{
		"critical": map[string]any{
			"identity": map[string]any{"docker-reference": repository.Name()},
			"image":    map[string]any{"docker-manifest-digest": digest},
			"type":     "cosign container image signature",
		},
		"optional": nil,
	})
	mustDo(t, err)
	sum := sha256.Sum256(payload)
	signature := must(ecdsa.SignASN1(rand.Reader, f.signingKey(t), sum[:]))(t)
	img, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), mutate.Addendum{
		Layer:       static.NewLayer(payload, "application/vnd.dev.cosign.simplesigning.v1+json"),
		Annotations: map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(signature)},
	})
	mustDo(t, err)
	mustDo(t, remote.Push(repository.Tag(strings.Replace(digest, ":", "-", 1)+".sig"), img, remote.WithContext(t.Context())))
}

func (f *factoryServer) signingKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	b := must(os.ReadFile(f.key))(t)
	block, _ := pem.Decode(b)
	key := must(x509.ParsePKCS8PrivateKey(block.Bytes))(t)
	return key.(*ecdsa.PrivateKey)
}

// secureBootKeys writes a factory's keys for Secure Boot: the key of its images with a
// certificate, and that of the policies for TPMs.
func secureBootKeys(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"pcr", "signing"} {
		key := must(rsa.GenerateKey(rand.Reader, 2048))(t)
		write(t, filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
		about := x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "Secure Boot of this test"},
			NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
		}
		der := must(x509.CreateCertificate(rand.Reader, &about, &about, &key.PublicKey, key))(t)
		write(t, filepath.Join(dir, name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
}

// fingerprint is the SHA-256 of a factory's certificate for Secure Boot.
func (f *factoryServer) fingerprint(t *testing.T) string {
	t.Helper()
	b := must(os.ReadFile(filepath.Join(f.keys, "signing.crt")))(t)
	block, _ := pem.Decode(b)
	return checksum(block.Bytes)
}

// signsForSecureBoot is another cluster's directory with signed images. Then the factory gets another key.
func (s *stage) signsForSecureBoot() {
	s.tell("Secure Boot: images signed by the factory's key, of which the lock has the certificate")
	lab := s.dir
	s.toSecureDirectory()
	s.typed(0, "lock")
	s.typed(0, "publish", "--only", "build")
	s.verified += 2
	s.typed(0, "publish")
	s.mirrored()
	old := s.server.fingerprint(s.t)
	if got := s.lock().SecureBootKey; got != old {
		s.t.Fatalf("the lock has certificate %s, the factory signs by %s", got, old)
	}

	s.tell("The factory gets another key for Secure Boot: machines that know the first one alone would not start")
	s.server.keys += "-2"
	secureBootKeys(s.t, s.server.keys)
	fresh := s.server.start(s.t)
	s.front.leads(s.t, fresh)
	said, _ := s.typed(2, "lock", "--check")
	s.says(said, old, s.server.fingerprint(s.t))
	s.notes("two replicas again: one still shows the first certificate, the other one builds")
	s.front.splits(s.t, s.factory, fresh)
	s.write("schematics/default.yaml", s.read("schematics/default.yaml")+"  extraKernelArgs: [net.ifnames=0]\n")
	s.typed(0, "lock")
	said, _ = s.typed(4, "publish", "--only", "build")
	s.refused++
	s.says(said, "systemd-boot is not signed by the certificate that is locked for Secure Boot, "+old[:12], "signed by "+s.server.fingerprint(s.t)[:12])
	s.dir = lab
	s.front.leads(s.t, fresh)
	s.factory.stop(s.t)
	s.factory = fresh
}

// toSecureDirectory makes another cluster's directory below the lab's, with Secure Boot and
// one schematic, and changes to it.
func (s *stage) toSecureDirectory() {
	s.t.Helper()
	lab := s.dir
	s.dir = filepath.Join(lab, "secure")
	config, _, _ := strings.Cut(s.readFrom(lab, "recast.yaml"), "roll:")
	config = strings.Replace(config, "images:\n", "images:\n  secureBoot: true\n", 1)
	config = strings.Replace(config, "  storage: schematics/storage.yaml\n", "", 1)
	config = strings.ReplaceAll(strings.ReplaceAll(config, "schematic: storage", "schematic: default"), "./talosconfig", "../talosconfig")
	s.write("recast.yaml", config)
	s.write("schematics/default.yaml", s.readFrom(lab, "schematics/default.yaml"))
}

// extension is a system extension as its publisher makes it.
type extension struct {
	name, version string
	files         func(arch string) []entry // below the node's root, without directories
}

func (e extension) index(t *testing.T) v1.ImageIndex {
	t.Helper()
	manifest, err := yaml.Marshal(map[string]any{
		"version": "v1alpha1",
		"metadata": map[string]any{
			"name": e.name, "version": e.version, "author": "Sidero Labs", "description": "The " + e.name + " of this test",
			"compatibility": map[string]any{"talos": map[string]any{"version": ">= v1.5.0"}},
		},
	})
	mustDo(t, err)
	return index(func(arch string) v1.Image {
		entries := []entry{{name: "manifest.yaml", mode: 0o644, content: manifest}, directory("rootfs")}
		files := e.files(arch)
		for _, dir := range directories(files) {
			entries = append(entries, directory("rootfs/"+dir))
		}
		for _, f := range files {
			f.name = "rootfs/" + f.name
			entries = append(entries, f)
		}
		config := v1.Config{Labels: map[string]string{"org.opencontainers.image.source": "https://github.com/siderolabs/extensions"}}
		return image(t, arch, config, packed(t, entries...))
	})
}

func directories(files []entry) []string {
	set := map[string]bool{}
	for _, f := range files {
		for dir := path.Dir(f.name); dir != "."; dir = path.Dir(dir) {
			set[dir] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// guestAgent has programs, configuration and links.
func guestAgent() extension { return guestAgentOf("11.0.2") }

func guestAgentOf(version string) extension {
	return extension{"qemu-guest-agent", version, func(arch string) []entry {
		const at = "usr/local/lib/containers/qemu-guest-agent/"
		return []entry{
			file(guestAgentAt, 0o755, random("qemu-ga "+version+" "+arch, 300<<10)),
			file(at+"usr/lib/libglib-2.0.so.0.8600.0", 0o755, random("glib "+arch, 90<<10)),
			{name: at + "usr/lib/libglib-2.0.so.0", mode: 0o777, link: "libglib-2.0.so.0.8600.0"},
			file("usr/local/etc/containers/qemu-guest-agent.yaml", 0o644, []byte("name: qemu-guest-agent\n")),
			file("usr/local/share/spdx/qemu-guest-agent.spdx.json", 0o644, nil),
		}
	}}
}

func iscsiTools(build string) extension {
	return extension{"iscsi-tools", "v0.2.0", func(arch string) []entry {
		return []entry{
			file("usr/local/sbin/iscsid", 0o755, random("iscsid "+build+" "+arch, 120<<10)),
			file("usr/local/sbin/iscsiadm", 0o755, random("iscsiadm "+arch, 120<<10)),
			file("usr/local/etc/iscsi/iscsid.conf", 0o600, []byte("node.startup = manual\n")),
		}
	}}
}

// ucode has files that imager stores outside of the squashfs: microcode and firmware.
func ucode() extension {
	return extension{"intel-ucode", "20260513", func(string) []entry {
		const at = "usr/lib/firmware/"
		return []entry{
			file(at+"intel-ucode/06-8f-08", 0o644, random("06-8f-08", 64<<10)),
			file(at+"intel-ucode/06-97-02", 0o644, random("06-97-02", 48<<10)),
			file(at+"i915/tgl_dmc_ver2_12.bin", 0o644, random("tgl_dmc", 19<<10)),
		}
	}}
}

// drbd has a kernel module, for which imager generates an extension modules.dep.
func drbd() extension {
	return extension{"drbd", "9.2.16-v1.13.9", func(arch string) []entry {
		return []entry{file("usr/lib/modules/"+kernelRelease+"/extras/drbd.ko", 0o644, module("drbd", arch))}
	}}
}

// frr is an extension that no factory knows.
func frr() extension {
	return extension{"frr", "1.7.15", func(arch string) []entry {
		return []entry{
			file("usr/local/lib/containers/frr/usr/lib/frr/bgpd", 0o755, random("bgpd "+arch, 200<<10)),
			file("usr/local/etc/containers/frr.yaml", 0o644, []byte("name: frr\n")),
		}
	}}
}

func file(name string, mode fs.FileMode, content []byte) entry {
	return entry{name: name, mode: mode, content: content}
}

// official publishes extensions and their list for a Talos version. It returns their digests by name.
func (d *depot) official(t *testing.T, talos string, extensions ...extension) map[string]string {
	t.Helper()
	digests := map[string]string{}
	var lines strings.Builder
	about := map[string]map[string]string{}
	for _, e := range extensions {
		idx := e.index(t)
		d.push(t, "siderolabs/"+e.name+":"+e.version, idx)
		digests[e.name] = digestOf(t, idx)
		line := fmt.Sprintf("ghcr.io/siderolabs/%s:%s@%s", e.name, e.version, digests[e.name])
		lines.WriteString(line + "\n")
		about[line] = map[string]string{"author": "Sidero Labs", "description": "The " + e.name + " of this test"}
	}
	descriptions := must(yaml.Marshal(about))(t)
	d.push(t, "siderolabs/extensions:"+talos, image(t, "amd64", v1.Config{}, packed(t,
		file("descriptions.yaml", 0o644, descriptions), file("image-digests", 0o644, []byte(lines.String())))))
	return digests
}

// built is the SHA-256 of an installer's file at a path of a node, extracted with the
// programs that made it, not with recast.
func built(t *testing.T, ref, install, path string) string {
	t.Helper()
	dir := t.TempDir()
	added := filepath.Join(dir, "added.zst")
	write(t, added, appended(t, kernelImage(t, ref), filepath.Join(install, "amd64/initramfs.xz")))
	run(t, dir, "", "zstd", "-d", "--quiet", added, "-o", "added.cpio")
	run(t, dir, "", "cpio", "-i", "--quiet", "-d", "-F", "added.cpio")
	images := must(filepath.Glob(filepath.Join(dir, "*.sqsh")))(t)
	for _, image := range images {
		content, err := exec.CommandContext(t.Context(), "unsquashfs", "-cat", image, path).Output()
		if err == nil && len(content) > 0 {
			return checksum(content)
		}
	}
	t.Fatalf("%s holds no %s", ref, path)
	return ""
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func kernelImage(t *testing.T, ref string) []byte {
	t.Helper()
	r := must(name.ParseReference(ref))(t)
	img := must(remote.Image(r, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}), remote.WithContext(t.Context())))(t)
	files := mutate.Extract(img)
	defer files.Close()
	for archive := tar.NewReader(files); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			t.Fatalf("%s holds no kernel", ref)
		}
		mustDo(t, err)
		if h.Name == "usr/install/amd64/vmlinuz.efi" {
			return must(io.ReadAll(archive))(t)
		}
	}
}

// appended is what imager has appended to Talos' own initramfs.
func appended(t *testing.T, uki []byte, initramfs string) []byte {
	t.Helper()
	f := must(pe.NewFile(bytes.NewReader(uki)))(t)
	section := f.Section(".initrd")
	if section == nil {
		t.Fatal("no .initrd")
	}
	b := must(section.Data())(t)
	own := must(os.ReadFile(initramfs))(t)
	_, rest, found := bytes.Cut(b[:section.VirtualSize], own)
	if !found {
		t.Fatal("the installer has another initramfs than Talos")
	}
	return rest
}
