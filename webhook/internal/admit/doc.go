// Package admit answers AdmissionReviews over HTTP: it reads as much of a review as a decision needs, asks poddns, and
// writes the response. It owns the protocol (versions, limits, errors) and fails open: whatever it can parse but not
// understand is allowed unchanged. What it decides with comes from the Sources; it writes to no API.
//
//	handler, err := admit.New(admit.Config{…}, sources, logger, metrics)
//	mux.Handle("/mutate", handler)
package admit
