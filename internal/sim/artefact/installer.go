package artefact

import (
	"errors"
	"fmt"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Installer makes an installer image with one manifest for each img, which differ in architecture; built is their build time.
// As the factory makes them, the index is an OCI one and the manifests are Docker's; layer 0 is the bare installer, layer 1 its
// payload.
func Installer(built time.Time, img ...Image) (v1.ImageIndex, error) {
	if len(img) == 0 {
		return nil, errors.New("installer for no architecture")
	}
	index := v1.ImageIndex(empty.Index)
	for _, i := range img {
		one, err := installerFor(i)
		if err == nil {
			one, err = mutate.CreatedAt(one, v1.Time{Time: built})
		}
		if err != nil {
			return nil, fmt.Errorf("make %s installer: %w", i.Arch, err)
		}
		index = withPlatform(index, one, i.Arch)
	}
	return index, nil
}

func installerFor(img Image) (v1.Image, error) {
	base, err := layer(map[string][]byte{
		"bin/installer": []byte("installer " + img.TalosVersion + " " + img.Arch + "\n"),
	}, nil, types.DockerLayer)
	if err != nil {
		return nil, err
	}
	payload, err := InstallerPayload(img)
	if err != nil {
		return nil, err
	}
	return image(img.Arch, v1.Config{
		Entrypoint: []string{"/bin/installer"},
		Env:        []string{"VERSION=" + img.TalosVersion},
		Labels: map[string]string{
			"alpha.talos.dev/version":         img.TalosVersion,
			"org.opencontainers.image.source": "https://github.com/siderolabs/talos",
		},
	}, base, payload)
}

// InstallerPayload is the layer of an installer with its payload.
func InstallerPayload(img Image) (v1.Layer, error) {
	uki, err := UKI(img)
	if err != nil {
		return nil, err
	}
	loader, err := SystemdBoot(img.Arch)
	if err != nil {
		return nil, err
	}
	if img.Signed {
		loader, uki = signed(loader), signed(uki)
	}
	return layer(map[string][]byte{
		installDir(img.Arch) + "systemd-boot.efi": loader,
		installDir(img.Arch) + "vmlinuz.efi":      uki,
	}, nil, types.DockerLayer)
}

// InstallerUKI is the boot image that an installer image copies to the disk of a machine
// of arch; a missing or damaged one is ErrNotBootable.
func InstallerUKI(idx v1.ImageIndex, arch string) ([]byte, error) {
	one, err := imageFor(idx, arch)
	if err != nil {
		return nil, fmt.Errorf("installer: %w", err)
	}
	files, _, err := readFiles(one)
	if err != nil {
		return nil, fmt.Errorf("installer: %w", err)
	}
	name := installDir(arch) + "vmlinuz.efi"
	uki, ok := files[name]
	if !ok {
		return nil, fmt.Errorf("installer: %w: no %s", ErrNotBootable, name)
	}
	img, err := ReadUKI(uki)
	if err != nil {
		return nil, fmt.Errorf("installer: %w", err)
	}
	if img.Arch != arch {
		return nil, fmt.Errorf("installer: %w: %s holds a kernel for %s", ErrNotBootable, name, img.Arch)
	}
	return uki, nil
}

// ReadInstaller reads what an installer image would install on a machine of arch.
func ReadInstaller(idx v1.ImageIndex, arch string) (Image, error) {
	uki, err := InstallerUKI(idx, arch)
	if err != nil {
		return Image{}, err
	}
	return ReadUKI(uki)
}

func installDir(arch string) string { return "usr/install/" + arch + "/" }
