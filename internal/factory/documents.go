package factory

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
	"github.com/siderolabs/image-factory/pkg/client"
)

// Versions lists the Talos versions that the factory builds.
func (c *Client) Versions(ctx context.Context) ([]string, error) {
	var versions []string
	err := c.askJSON(ctx, c.get("versions"), &versions)
	return versions, err
}

// Broken lists the Talos versions that the factory has marked as broken and does not build.
func (c *Client) Broken(ctx context.Context) ([]string, error) {
	var broken []string
	r := c.get("versions")
	r.link += "?broken=true"
	if err := c.askJSON(ctx, r, &broken); err != nil || len(broken) == 0 {
		return nil, err
	}
	versions, err := c.Versions(ctx)
	if err != nil {
		return nil, err
	}
	// A factory that does not know the parameter lists the versions that it builds.
	if slices.ContainsFunc(broken, func(v string) bool { return slices.Contains(versions, v) }) {
		return nil, nil
	}
	return broken, nil
}

// Extensions lists the official extensions as the factory would build them now.
func (c *Client) Extensions(ctx context.Context, talos string) ([]schematics.OfficialExtension, error) {
	var list []client.ExtensionInfo
	if err := c.askJSON(ctx, c.get("version", talos, "extensions", "official"), &list); err != nil {
		return nil, c.unknownVersion(err)
	}
	official := make([]schematics.OfficialExtension, 0, len(list))
	for _, x := range list {
		ref, version := splitTag(x.Ref)
		official = append(official, schematics.OfficialExtension{
			Name: x.Name, Version: version, Ref: ref, Digest: x.Digest, Author: x.Author, Description: x.Description,
		})
	}
	return official, nil
}

// Overlays lists the official overlays as the factory would build them now.
func (c *Client) Overlays(ctx context.Context, talos string) ([]schematics.OfficialOverlay, error) {
	var list []client.OverlayInfo
	if err := c.askJSON(ctx, c.get("version", talos, "overlays", "official"), &list); err != nil {
		if hasStatus(err, http.StatusInternalServerError) {
			// The real factory gives this answer, too: its list of overlays must not be empty.
			err = fault.WithHint(err, "a factory without overlays for Talos %s gives this answer, too", talos)
		}
		return nil, c.unknownVersion(err)
	}
	overlays := make([]schematics.OfficialOverlay, 0, len(list))
	for _, x := range list {
		ref, _ := splitTag(x.Ref)
		overlays = append(overlays, schematics.OfficialOverlay{Name: x.Name, Image: x.Image, Ref: ref, Digest: x.Digest})
	}
	return overlays, nil
}

func (c *Client) unknownVersion(err error) error {
	if hasStatus(err, http.StatusNotFound) {
		return fault.WithHint(fault.As(fault.Config, err), "%s/versions lists the Talos versions that it builds", c.base)
	}
	return err
}

// splitTag cuts a reference at its tag; a port is not a tag.
func splitTag(ref string) (repository, tag string) {
	i := strings.LastIndex(ref, ":")
	if i < strings.LastIndex(ref, "/") {
		return ref, ""
	}
	return ref[:max(i, 0)], ref[i+1:]
}

// Knows reports whether the factory has registered a schematic.
func (c *Client) Knows(ctx context.Context, id string) (bool, error) {
	_, err := c.ask(ctx, c.get("schematics", id))
	if hasStatus(err, http.StatusNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Register registers a schematic. If the factory rejects the schematic, the error is of kind Config and has the
// factory's message.
func (c *Client) Register(ctx context.Context, canonical string) (id, stored string, err error) {
	r := c.get("schematics")
	r.method, r.body = http.MethodPost, []byte(canonical)
	var answer struct {
		ID        string `json:"id"`
		Schematic string `json:"schematic"`
	}
	if err := c.askJSON(ctx, r, &answer); err != nil {
		return "", "", err
	}
	if answer.ID == "" {
		return "", "", c.foreign(errors.New("the answer has no ID for the schematic"))
	}
	if answer.Schematic != "" {
		return answer.ID, answer.Schematic, nil
	}
	text, err := c.ask(ctx, c.get("schematics", answer.ID)) // older factories return only the ID
	if err != nil {
		return "", "", fmt.Errorf("read the schematic back: %w", err)
	}
	return answer.ID, string(text), nil
}

// SigningKey returns the public key (PEM) with which the factory says it signs installers. It returns nil if the
// factory has none: an older factory, or a factory that signs without a key of its own and returns nothing.
func (c *Client) SigningKey(ctx context.Context) ([]byte, error) {
	key, err := c.ask(ctx, c.get("oci", "cosign", "signing-key.pub"))
	if hasStatus(err, http.StatusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(key)) == 0 {
		return nil, nil
	}
	return c.requirePEM(key, "signing key")
}

// SecureBootCertificate returns the certificate (PEM) with which the factory signs images for Secure Boot. A factory
// that signs none is an error of kind Config.
func (c *Client) SecureBootCertificate(ctx context.Context) ([]byte, error) {
	cert, err := c.ask(ctx, c.get("secureboot", "signing-cert.pem"))
	switch {
	case hasStatus(err, http.StatusInternalServerError), hasStatus(err, http.StatusNotFound):
		// The factory answers 500 if Secure Boot is disabled (image-factory, internal/secureboot/secureboot.go).
		return nil, fault.WithHint(fault.As(fault.Config, fmt.Errorf("certificate for Secure Boot: %w", err)),
			"a factory without images for Secure Boot gives this answer: set images.secureBoot to false, or name another factory in images.factory")
	case err != nil:
		return nil, fmt.Errorf("certificate for Secure Boot: %w", err)
	}
	return c.requirePEM(cert, "certificate for Secure Boot")
}

func (c *Client) requirePEM(text []byte, what string) ([]byte, error) {
	if block, _ := pem.Decode(text); block == nil {
		return nil, c.foreign(fmt.Errorf("the %s is not PEM", what))
	}
	return text, nil
}
