package factory

import (
	"archive/tar"
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"debug/pe"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

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

// registers has the factory know a schematic.
func (f *front) registers(t *testing.T, schematic string) {
	t.Helper()
	r := must(http.Post(f.url+"/schematics", "application/yaml", strings.NewReader(schematic)))(t)
	defer r.Body.Close()
	if r.StatusCode != http.StatusCreated {
		t.Fatalf("the factory answers %s", r.Status)
	}
}

// pulled is the image of every architecture that a reference names.
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

// signedImage makes the last layer of an installer again, which has the programs.
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

// changeCode changes one byte of a program's code.
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

// signingKey is the factory's key for images.
func (f *factoryServer) signingKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	b := must(os.ReadFile(f.key))(t)
	block, _ := pem.Decode(b)
	key := must(x509.ParsePKCS8PrivateKey(block.Bytes))(t)
	return key.(*ecdsa.PrivateKey)
}
