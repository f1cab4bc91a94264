package factory

import (
	"context"
	"net/http"

	"github.com/recast-sh/recast/images"
)

// manifests are what an installer may be: an index, which the factory makes.
const manifests = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"

// InstallerRepository is where the factory, which is a registry too, has the
// installers of a schematic.
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

// BuildInstaller has the installer of a schematic built, for every architecture,
// and returns when it can be pulled. The factory builds it for whoever asks for the
// manifest of its tag; clients of registries ask for that too, but with less patience.
func (c *Client) BuildInstaller(ctx context.Context, req images.ISORequest, note func(string)) error {
	note = oneByOne(note)
	defer tell(note, "the factory is building the installer")()
	// The manifest is in the factory's registry, to which it may redirect.
	r := c.get("v2", installerImage(req), req.SchematicID, "manifests", req.Talos)
	r.accept, r.within, r.stay = manifests, buildTakes, true
	err := persist(ctx, asset, note, func() error {
		resp, err := c.send(ctx, r)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
	if hasStatus(err, http.StatusUnauthorized) {
		return nil // it is for the registry's client to log in
	}
	return c.noImage(err, req)
}
