package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// PatchedExtension is the one that stories patch; only workers have it.
const PatchedExtension = "iscsi-tools"

// CommonExtension is one that every node has.
const CommonExtension = "qemu-guest-agent"

// extensions are those of the lab's Talos release.
func extensions() []artefact.Extension {
	ext := func(name, version, author, text, file string) artefact.Extension {
		return artefact.Extension{
			Name: name, Version: version, Author: author, Description: text,
			Files: map[string][]byte{file: []byte("#!/bin/" + name + " " + version + "\n")},
		}
	}
	return []artefact.Extension{
		ext("iscsi-tools", "v0.2.0", "Sidero Labs", "iSCSI tools.", "/usr/local/sbin/iscsid"),
		ext("qemu-guest-agent", "11.0.2", "Markus Reiter", "The QEMU guest agent.", "/usr/local/lib/containers/qemu-guest-agent/qemu-ga"),
		ext("util-linux-tools", "2.41.2", "Sidero Labs", "fstrim and others.", "/usr/local/sbin/fstrim"),
	}
}

// pull fetches the boot image of an installer over the network, as a node does.
func (l *Lab) pull(ctx context.Context, ref, arch string) (uki []byte, err error) {
	parsed, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", ref, err)
	}
	index, err := remote.Index(parsed, remote.WithContext(ctx), remote.WithTransport(l.puller))
	if err != nil {
		return nil, registryError(err)
	}
	if uki, err = artefact.InstallerUKI(index, arch); err != nil {
		return nil, fmt.Errorf("read installer %s: %w", ref, err)
	}
	return uki, nil
}

// resolve is the digest that a reference currently points to.
func (l *Lab) resolve(ctx context.Context, ref string) (string, error) {
	parsed, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", ref, err)
	}
	desc, err := remote.Head(parsed, remote.WithContext(ctx), remote.WithTransport(l.puller))
	if err != nil {
		return "", registryError(err)
	}
	return desc.Digest.String(), nil
}

// registryError translates a registry's answer into the error that a node reports.
func registryError(err error) error {
	if refused, ok := errors.AsType[*transport.Error](err); ok && refused.StatusCode == http.StatusNotFound {
		return talosapi.ErrNoImage
	}
	return err
}

// BreakImage gives an image a defect: see talosapi.Firmware.
func (l *Lab) BreakImage(image string, d talosapi.Defect) { l.machines.BreakImage(image, d) }

// register uploads a schematic to the factory and returns its installer reference.
func (l *Lab) register(ctx context.Context, schematic string) (installer string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.factoryURL()+"/schematics", bytes.NewBufferString(schematic))
	if err != nil {
		return "", fmt.Errorf("register schematic: %w", err)
	}
	resp, err := (&http.Client{Transport: l.puller}).Do(req)
	if err != nil {
		return "", fmt.Errorf("register schematic: %w", err)
	}
	defer resp.Body.Close()
	var answer struct{ ID string }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.ID == "" {
		return "", fmt.Errorf("register schematic: status %s: %w", resp.Status, err)
	}
	return fmt.Sprintf("%s/%s-installer/%s:%s", l.o.Factory, l.o.Platform, answer.ID, l.o.TalosVersion), nil
}
