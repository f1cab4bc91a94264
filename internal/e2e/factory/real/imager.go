package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/siderolabs/talos/pkg/imager"
	"github.com/siderolabs/talos/pkg/imager/profile"
	"github.com/siderolabs/talos/pkg/reporter"
	"go.yaml.in/yaml/v4"
)

// runImager is the Talos imager as a program: the library reads a profile from standard
// input, like the container's entry point with "-". Its arguments are the directory with
// the container's /usr/install, and the output directory.
func runImager(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("usage: real imager INSTALL-DIRECTORY OUTPUT-DIRECTORY")
	}
	var p profile.Profile
	if err := yaml.NewDecoder(os.Stdin).Decode(&p); err != nil {
		return fmt.Errorf("read the profile: %w", err)
	}
	in := func(name string) profile.FileAsset {
		return profile.FileAsset{Path: filepath.Join(args[0], p.Arch, name)}
	}
	p.Input.Kernel, p.Input.Initramfs = in("vmlinuz"), in("initramfs.xz")
	p.Input.SDStub, p.Input.SDBoot = in("systemd-stub.efi"), in("systemd-boot.efi")
	i, err := imager.New(p)
	if err != nil {
		return err
	}
	_, err = i.Execute(ctx, args[1], reporter.New())
	return err
}
