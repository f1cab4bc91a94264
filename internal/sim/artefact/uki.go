package artefact

import "fmt"

const ukiKind = "uki "

// UKI makes a unified kernel image: kernel, command line and initramfs with the extensions in one file.
func UKI(img Image) ([]byte, error) {
	if err := img.validate(); err != nil {
		return nil, err
	}
	return seal(ukiKind, img)
}

// ReadUKI reads a unified kernel image; anything else, or a damaged one, is ErrNotBootable.
func ReadUKI(b []byte) (Image, error) {
	img, rest, err := readUKI(b)
	if err != nil {
		return Image{}, err
	}
	if len(rest) > 0 {
		return Image{}, fmt.Errorf("%w: UKI: %d bytes after its end", ErrNotBootable, len(rest))
	}
	return img, nil
}

func readUKI(b []byte) (img Image, rest []byte, err error) {
	rest, err = unseal(ukiKind, b, &img)
	if err == nil {
		err = img.validate()
	}
	if err != nil {
		return Image{}, nil, fmt.Errorf("%w: UKI: %w", ErrNotBootable, err)
	}
	return img, rest, nil
}
