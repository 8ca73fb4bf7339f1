DROP TABLE IF EXISTS signing_secret;
