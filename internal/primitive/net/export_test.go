package net

// For fuzz targets of the package's own tests.
var (
	ParseHeader = parseHeader
	SplitURL    = func(raw string) (destination, url string, err error) {
		t, err := parseTarget(raw)
		if err != nil {
			return "", "", err
		}
		return t.destination(), t.url.String(), nil
	}
	Follow = func(base, location string) (destination, scheme string, err error) {
		t, err := parseTarget(base)
		if err != nil {
			return "", "", err
		}
		if t, err = t.follow(location); err != nil {
			return "", "", err
		}
		return t.destination(), t.url.Scheme, nil
	}
)
