package factory

import (
	"context"
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

// Broken lists the Talos versions that the factory has marked as broken and does not
// build.
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
	// A factory that does not know the parameter lists what it builds.
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
			// The real one does so, too: its list of overlays must not be empty.
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
