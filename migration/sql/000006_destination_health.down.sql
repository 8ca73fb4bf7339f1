DROP TABLE IF EXISTS destination_health;
