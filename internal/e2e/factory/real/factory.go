package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/siderolabs/image-factory/cmd/image-factory/cmd"
	"go.uber.org/zap"
)

// serveFactory is the Image Factory as a separate process, as in production: a restart
// loses its memory. Its arguments are the address to listen at, its public address, the
// registry with Talos, the registry for its images, the file of its key, and the directory
// with the keys for Secure Boot; for TLS, also the files of a certificate and its key.
func serveFactory(ctx context.Context, args []string) error {
	if len(args) != 6 && len(args) != 8 {
		return errors.New("usage: real factory LISTEN URL REGISTRY OWN-REGISTRY KEY SECURE-BOOT-DIRECTORY [CERTIFICATE CERTIFICATE-KEY]")
	}
	listen, known, core, own, key, keys := args[0], args[1], args[2], args[3], args[4], args[5]
	o := cmd.DefaultOptions
	o.HTTP.ListenAddr, o.HTTP.ExternalURL = listen, known
	if len(args) == 8 {
		o.HTTP.CertFile, o.HTTP.KeyFile = args[6], args[7]
	}
	o.ContainerSignature.Disabled = true // nothing in the registry is signed
	o.Metrics.Addr = ""
	o.Artifacts.Core.Registry, o.Artifacts.Core.Insecure = core, true
	repository := func(name string) cmd.OCIRepositoryOptions {
		return cmd.OCIRepositoryOptions{Registry: own, Namespace: "factory", Repository: name, Insecure: true}
	}
	o.Artifacts.Schematic = repository("schematics")
	o.Artifacts.Installer.Internal = cmd.OCIRepositoryOptions{Registry: own, Namespace: "factory", Insecure: true}
	o.Cache.OCI, o.Cache.SigningKeyPath = repository("cache"), key
	o.SecureBoot.Enabled = true
	o.SecureBoot.File = cmd.FileProviderOptions{
		SigningKeyPath: filepath.Join(keys, "signing.key"), SigningCertPath: filepath.Join(keys, "signing.crt"), PCRKeyPath: filepath.Join(keys, "pcr.key"),
	}
	logger, err := zap.NewProduction()
	if err != nil {
		return err
	}
	return cmd.RunFactory(ctx, logger, o)
}
