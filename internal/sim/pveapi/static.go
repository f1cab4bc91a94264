package pveapi

import (
	"encoding/base64"
	"net/http"
)

// logo is the only file of the web interface: any Proxmox serves it without
// authentication, so clients can detect one by it.
const logo = "/pve2/images/logo-128.png"

// writeLogo answers with a PNG of one pixel.
func writeLogo(rw http.ResponseWriter) {
	png, err := base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	rw.Header().Set("Content-Type", "image/png")
	_, _ = rw.Write(png) // the client may be gone
}
