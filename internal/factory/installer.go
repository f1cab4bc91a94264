package factory

import (
	"context"
	"net/http"

	"github.com/recast-sh/recast/images"
)

// manifests are the accepted types of an installer: the factory makes an index.
const manifests = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"

// InstallerRepository is where the factory, which is also a registry, has a
// schematic's installers.
func (c *Client) InstallerRepository(req images.ISORequest) string {
	return c.base.Host + "/" + installerImage(req) + "/" + req.SchematicID
}

func installerImage(req images.ISORequest) string { return req.Platform + "-installer" + suffix(req) }

func suffix(req images.ISORequest) string {
	if req.SecureBoot {
		return "-secureboot"
	}
	return ""
}

// BuildInstaller makes the factory build a schematic's installer, for every
// architecture, and returns when it can be pulled. The factory builds it on a
// request for its tag's manifest; registry clients send that, too, but with less
// patience.
func (c *Client) BuildInstaller(ctx context.Context, req images.ISORequest, note func(string)) error {
	note = serialize(note)
	defer reportEvery(note, "the factory is building the installer")()
	// The manifest is in the factory's registry, to which it may redirect.
	r := c.get("v2", installerImage(req), req.SchematicID, "manifests", req.Talos)
	r.accept, r.within, r.stay = manifests, buildTimeout, true
	err := retry(ctx, asset, note, func() error {
		resp, err := c.send(ctx, r)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
	if hasStatus(err, http.StatusUnauthorized) {
		return nil // the registry's client logs in
	}
	return c.explainMissing(err, req)
}
